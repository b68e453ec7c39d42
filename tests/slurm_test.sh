#!/bin/sh
# examples/kedge.sbatch under stand-ins for srun and scontrol: what it starts is a command that kedge knows, it requeues the
# job for those statuses that docs/ranks.md names, and ends with the status of the run. Slurm itself: tools/ranks-slurm.
. tests/harness.sh

mkdir "$work/bin"
cat >"$work/bin/srun" <<'END'
#!/bin/sh
echo "$@" >"$WORK/srun"
while [ "${1#-}" != "$1" ]; do shift; done
[ -z "$STATUS" ] || exit "$STATUS"
exec "$@" --dry-run
END
cat >"$work/bin/scontrol" <<'END'
#!/bin/sh
echo "$@" >>"$WORK/requeued"
END
chmod +x "$work/bin/srun" "$work/bin/scontrol"
job() { # STATUS ARGUMENTS: under sbatch, which gives it these
    rm -f "$work/requeued"
    env PATH="$work/bin:$PATH" WORK="$work" STATUS="$1" SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=2 sh -c 'shift && . examples/kedge.sbatch' job "$@"
}
ends() { # STATUS, requeued or ended
    job "$1" recipes/gsm8k.yaml
    [ $? -eq "$1" ] && case $2 in
    requeued) [ "$(cat "$work/requeued")" = "requeue 7" ] ;;
    ended) [ ! -e "$work/requeued" ] ;;
    esac
}
for status in 75 143; do pass "status $status: the job is requeued" ends $status requeued; done
for status in 0 1 2 3 126 127 130 134 137 139; do pass "status $status: the job ends" ends $status ended; done

digits=tests/data/verl_digit_llama
runs() {
    job "" model.path=$digits task.name=digits data.train=$digits/train.jsonl data.val=$digits/test.jsonl "run.dir=$work/a b" "$@" &&
        grep -q -- '-K --mpi=pmix --cpus-per-task=2 ./kedge train ' "$work/srun"
}
pass "kedge knows what it is given, and a blank in a name stays" runs
unknown() { ! runs train.steeps=3 >"$work/said" 2>&1 && grep -q "train.steps" "$work/said"; }
pass "what kedge does not know is refused" unknown
# the first lines of the file, for sbatch
options='--((nodes|ntasks-per-node|cpus-per-task)=[0-9]+|requeue|open-mode=append|signal=TERM@[0-9]+)'
for_sbatch() { sed -n 's/^#SBATCH //p' examples/kedge.sbatch | grep -xE -e "$options( $options)*"; }
pass "what sbatch is told" for_sbatch
exit $((failures > 0))
