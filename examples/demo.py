"""What a supervisor is for, in about a minute: the same training undisturbed, and under attack.

Run by ``make demo``, or by hand: ``python examples/demo.py``.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = HERE / "char_lm.py"
FAULTS = "faults=[{kind: nan_data, step: 120},{kind: sigkill, step: 200}]"
FINAL = re.compile(r"final validation loss ([0-9.]+|nan|inf)")


def run(command):
    """Runs `command`, shows its output as it comes, and returns (exit code, output, seconds)."""
    started = time.monotonic()
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            lines.append(line)
            print(f"    {line}", end="", flush=True)
    return process.returncode, "".join(lines), time.monotonic() - started


def final_loss(output):
    found = FINAL.findall(output)
    return float(found[-1]) if found else float("nan")


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def story(run_dir):
    """Yields one line for each thing that happened, from the journal."""
    for line in (run_dir / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        kind, step = event["kind"], event.get("step")
        if kind == "alert" and event.get("severity") == "critical":
            yield f"step {step}: {event['message']}"
        elif kind == "action" and event.get("applied"):
            yield f"step {step}: treated with {event['name']}: {event['detail']}"
        elif kind == "rollback":
            yield f"step {step}: went back to the state of step {event['to_step']}"
        elif kind == "worker_exited" and event["cause"] != "completed":
            yield f"step {event['last_step']}: the process ended: {event['cause']}"
        elif kind == "resumed":
            yield (
                f"step {event['from_step']}: a new process continued from its checkpoint,"
                f" {event['exactness']}"
            )
        elif kind == "gave_up":
            yield f"gave up: {event['reason']}"


def main():
    heading("1. The training alone: python examples/char_lm.py")
    code, output, alone_s = run([sys.executable, str(SCRIPT)])
    if code != 0:
        print(f"The training itself failed with code {code}: fix that first.")
        return code
    undisturbed = final_loss(output)

    run_dir = Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    heading("2. The same script, supervised: a poisoned batch at step 120, SIGKILL at step 200")
    command = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", str(run_dir)]
    command += ["--set", "checkpoint.every_steps=50", "--set", FAULTS, str(SCRIPT)]
    print(f"    $ supervisor {' '.join(command[3:-2])} '{FAULTS}' {SCRIPT.name}")
    code, output, supervised_s = run(command)

    heading("3. What happened")
    for line in story(run_dir):
        print(f"  - {line}")
    report = run_dir / "report" / "report.json"
    if report.exists():
        print(f"\n  {json.loads(report.read_text())['verdict']}")

    survived = final_loss(output)
    print(f"\n  final validation loss alone:           {undisturbed:.4f}   ({alone_s:.0f} s)")
    print(f"  final validation loss under attack:    {survived:.4f}   ({supervised_s:.0f} s)")
    print(f"\n  The report: {run_dir / 'report' / 'report.html'}")
    # The poisoned batch is lost on purpose; everything else must have been learned all the same.
    if code == 0 and abs(survived - undisturbed) <= 0.02 * undisturbed:
        print("  Survived: the difference is the one batch that was left out.")
        return 0
    print(f"  Not survived as promised (exit code {code}).")
    return code or 1


if __name__ == "__main__":
    sys.exit(main())
