"""Does it hold on a real device: memory, seconds, values and the largest batch, asked of one attached GPU in minutes.

    python -m benchmarks.attached [--seconds 540] [--out FOLDER] [--small] [--models gpt2-small llama]
    jaxckpt bench --attached

Three kinds of processes share the time. Planners compile for the target by its name, without the device, as on a
laptop, and make plans. One process after the other has the device: first to calibrate it, then to compile, run and
time each model's versions. The parent only starts them, gathers what they wrote, and stops them when time is up.

Every answer is written as soon as it is known and never asked twice: a run that is cut short tells what it has, and
the next one goes on. Read in this order: `strangers` (steps that are no models), `questions` (what is asked), `store`
(where answers are), `planning`, `starting`, `running`, `headline`, `workers`, `parent`, and `findings` (what follows),
`tables`.
"""
