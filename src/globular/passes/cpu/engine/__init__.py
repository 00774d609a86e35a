"""What finds the closest centres of rows in a compiled call: scores nominate, exact distances decide."""
