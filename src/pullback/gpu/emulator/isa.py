"""PTX text to code: the forms of all instructions, registered, and who asks for them."""

from __future__ import annotations

from pullback.gpu.emulator import forms, forms_memory
from pullback.gpu.emulator.decode import Code, Decoder
from pullback.gpu.emulator.ptx import parse

FORMS = (forms, forms_memory)  # they register themselves when they are imported


def decoded(text: str) -> Code:
    """A PTX module, ready to run."""
    return Decoder(parse(text)).code()
