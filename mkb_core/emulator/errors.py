"""What can go wrong on the emulated device; every message names the kernel."""


class EmulatorError(RuntimeError):
    """A kernel did something the emulated device refuses, or cannot do."""


class UnsupportedInstruction(EmulatorError):
    """The kernel uses an instruction that is not emulated; the message starts with `needs a GPU: `."""

    def __init__(self, instruction: str, kernel: str = "") -> None:
        """Takes the PTX opcode with its modifiers, and the kernel's name where it is known."""
        self.instruction = instruction
        super().__init__(f"needs a GPU: {instruction}" + (f" in kernel {kernel}" if kernel else ""))


class MemoryFault(EmulatorError):
    """An access outside its memory or off its alignment."""


class Deadlock(EmulatorError):
    """Every thread left waits for threads that can never arrive."""


class StepLimit(EmulatorError):
    """The kernel ran for more steps than the limit: it most likely never ends."""
