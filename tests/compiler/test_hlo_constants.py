"""What is read from the text of a compiled program."""

import pytest

from jaxckpt.compiler.caveats import chooses_convolutions, constant_bytes


@pytest.mark.parametrize(
    ("line", "size_bytes"),
    [
        ("  %constant_1_0 = f32[1024,1024]{1,0} constant({...})", 2**22),
        ("  %c.2 = bf16[7]{0} constant({1, 2, 3, 4, 5, 6, 7}), metadata={}", 14),
        ("  %c = f8e4m3fn[16]{0} constant({...})", 16),
        ("  %c = pred[3]{0} constant({1, 0, 1})", 3),
        ("  %c = s4[8]{0:E(4)} constant({...})", 4),
        ("  %c = c64[2,2]{1,0} constant({...})", 32),
        ("  %c = u8[0]{0} constant({})", 0),
        ("  ROOT %c = f32[2]{0} constant({1, 2})", 8),
        ("  %scalar = f32[] constant(0)", 0),
        ("  %fusion = f32[4]{0} fusion(%constant_1_0), kind=kLoop", 0),
    ],
)
def test_constant_arrays_are_counted_and_nothing_else(line, size_bytes):
    assert constant_bytes(f"HloModule m\n{line}\n") == size_bytes


def test_constants_of_a_program_add_up():
    line = "  %c = f32[4]{0} constant({...})\n"
    assert constant_bytes(line * 3) == 48


def test_convolutions_of_cudnn_are_seen():
    call = 'custom-call(%x), custom_call_target="__cudnn$convForward"'
    assert chooses_convolutions(f"%cudnn-conv.1 = (f32[8]{{0}}, u8[0]{{0}}) {call}")
    assert not chooses_convolutions("%cudnn-conv.1 = f32[8]{0} add(%x, %y)")
