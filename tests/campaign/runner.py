"""Runs pytest in forks of a process that has torch loaded, for each line [folder, file for output, arguments]; answers with exit codes."""
import json, os, sys
import filelock, hypothesis, numpy, pytest, tokenizers, torch, torch._dynamo, tqdm

for line in sys.stdin:
    folder, output, arguments = json.loads(line)
    if not (pid := os.fork()):
        os.chdir(folder)
        sys.path[0] = folder  # as `python -m pytest` has it
        with open(output, "w") as f, open(os.devnull) as nothing:
            for i, file in enumerate((nothing, f, f)): os.dup2(file.fileno(), i)
        code = 70
        try: code = int(pytest.main(arguments))
        finally: sys.stdout.flush(); os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
