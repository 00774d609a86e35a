"""Ctrl-C at a moment of one's choice."""

import dis
import sys
import types


class CtrlC:
    """A trace function that raises KeyboardInterrupt at one of the places of some modules where CPython hears signals.

    These are the beginning of a function, and the end of a call or of a round of a loop.
    """

    def __init__(self, moment: int, where: str = "globular.threads.") -> None:
        self.moment = moment + 1
        sys._getframe().f_trace_opcodes = True  # Python 3.12 tells of instructions only if this was asked for before
        self._where = where
        self._before: dict[types.FrameType, str] = {}

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> "CtrlC | None":
        if not frame.f_globals["__name__"].startswith(self._where):
            return None
        frame.f_trace_opcodes = True
        before = self._before.get(frame, "RESUME")
        self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        hears = before.startswith(("RESUME", "CALL", "JUMP_BACKWARD")) and not before.startswith("CALL_INTRINSIC")
        if event == "opcode" and hears:
            self.moment -= 1
            if self.moment == 0:
                raise KeyboardInterrupt
        return self
