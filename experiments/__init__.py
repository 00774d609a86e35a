"""The papers' tables and figures, measured again: one package per paper, one command per table or figure."""
