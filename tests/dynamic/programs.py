"""Programs at random: constants, calls with several results, views, mutations, copies, releases."""

from hypothesis import strategies as st

from jaxckpt.dynamic.program import Call, Constant, Get, Keep, Program, Release, RunCall, Tensor


@st.composite
def programs(draw, *, most_calls=24, multiple=True, donated=False, once=False):
    """A program of up to `most_calls` calls whose reads are of what is still named."""
    tensors, calls, statements, names = [], [], [], {}
    for _ in range(draw(st.integers(0, 2))):
        tensors.append(Tensor(name=f"c{len(tensors)}", size_bytes=draw(st.integers(1, 4))))
        statements.append(Constant(len(tensors) - 1, lent=not (donated and draw(st.booleans()))))
        names[len(tensors) - 1] = 1
    for number in range(draw(st.integers(most_calls // 3, most_calls))):
        alive = sorted(t for t, count in names.items() if count)
        reads = draw(st.lists(st.sampled_from(alive), max_size=2)) if alive else []
        results = draw(st.sampled_from([1, 1, 1, 2, 3])) if multiple else 1
        first = len(tensors)
        for _ in range(results):
            view = reads[0] if reads and draw(st.integers(0, 4)) == 0 else None
            size = 0 if view is not None else draw(st.sampled_from([0, 1, 1, 2, 3, 4]))
            tensors.append(Tensor(name=f"t{len(tensors)}", size_bytes=size, view_of=view))
            names[len(tensors) - 1] = 1
        calls.append(
            Call(
                name=f"call{number}",
                price=draw(st.integers(0, 5)),
                reads=tuple(reads),
                writes=tuple(range(first, first + results)),
                once=once and draw(st.integers(0, 5)) == 0,
                dense=draw(st.booleans()),
            )
        )
        statements.append(RunCall(number))
        for _ in range(draw(st.integers(0, 2))):
            t = draw(st.sampled_from(sorted(names)))
            if names[t]:
                more = draw(st.integers(0, 4)) == 0
                statements.append(Get(t) if more else Release(t))
                names[t] += 1 if more else -1
    statements += [Keep(t) for t, count in names.items() if count and draw(st.booleans())]
    program = Program(tensors=tuple(tensors), calls=tuple(calls), statements=tuple(statements))
    program.validate()
    return program
