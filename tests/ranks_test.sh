#!/bin/sh
# A run under mpirun is the run of one process, for each MPI that is here: same files for 2 and 3 ranks, what a lost rank
# leaves behind, and what is refused. More of what ranks promise, without a launcher: tests/ranks_train_test.c.
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all "ranks over MPI" "./kedge is not built"

digits=tests/data/verl_digit_llama
# train DIR RANKS KEYS...: with the launcher $launch; what it says is in $work/said
train() {
    dir=$1 n=$2
    shift 2
    # two ranks share a core: one thread each
    OMP_NUM_THREADS=1 $launch -n "$n" ./kedge train model.path=$digits task.name=digits data.train=$digits/train.jsonl \
        data.val=$digits/test.jsonl rollout.prompts=4 rollout.samples=4 rollout.max_tokens=12 \
        train.updates_per_step=2 train.lanes=4 optim.lr=1e-3 kl.estimator=k3 kl.beta=0.05 anchor.kind=ema anchor.period=1 \
        checkpoint.dtype=fp32 eval.problems=5 run.dir="$work/$dir" "$@" >"$work/said" 2>&1
}
said() { grep -qE "$1" "$work/said"; }
same() { # same FILE A B
    cmp "$work/$2/checkpoints/latest/$1" "$work/$3/checkpoints/latest/$1"
}
same_run() { same model/model.safetensors "$1" "$2" && same state.safetensors "$1" "$2"; }
short="train.steps=4 checkpoint.every=1"
one_process() { launch=alone && train one 1 $short; }
one_process_long() { launch=alone && train whole 1 $long; }
alone() { shift 2 && "$@"; } # -n 1 COMMAND
equal_for() { train "$m-$1" "$1" $short && same_run one "$m-$1"; }
# one that samples, beside two that train on what it sampled a step ago
lag="train.steps=3 checkpoint.every=1 rollout.lag=1"
one_that_lags() { launch=alone && train lag 1 $lag; }
rollout_rank() { train "$m-lag" 3 $lag ranks.rollout=1 && same_run lag "$m-lag"; }
evaluate() { # evaluate DIR RANKS: the folder of an evaluation
    dir=$1 n=$2
    OMP_NUM_THREADS=1 $launch -n "$n" ./kedge eval --model $digits --task digits --data $digits/test.jsonl --problems 6 \
        --max-tokens 12 --out "$work/$dir" >"$work/said" 2>&1
}
one_evaluation() { launch=alone && evaluate eval 1; }
evaluated() { evaluate "$m-eval" 3 && diff -r "$work/eval" "$work/$m-eval"; }
# one rank of two is killed in the middle: all end, by themselves, and three ranks go on to the weights of the whole run
long="train.steps=40 checkpoint.every=2 eval.at_start=false"
of_run() { # of_run DIR: the processes that train it
    for p in $(pgrep -f "run.dir=$work/$1( |$)"); do
        case $(readlink "/proc/$p/exe") in */kedge) echo "$p" ;; esac
    done
}
killed() {
    train "$m-lost" 2 $long &
    launcher=$!
    for _ in $(seq 300); do
        [ -d "$work/$m-lost/checkpoints/step-000002" ] && break
        sleep 0.1
    done
    kill -9 "$(of_run "$m-lost" | tail -1)" || return 1
    ! wait $launcher || return 1
    [ ! -d "$work/$m-lost/checkpoints/step-000040" ] && [ -z "$(of_run "$m-lost")" ]
}
resumed() { train "$m-lost" 3 $long --resume && same_run whole "$m-lost"; }
hung() { # one rank of three is stopped: all end soon, with one line that names it, and status 75
    train "$m-hung" 3 $long ranks.wait_s=3 &
    launcher=$!
    for _ in $(seq 300); do
        [ -d "$work/$m-hung/checkpoints/step-000002" ] && break
        sleep 0.1
    done
    stopped=$(of_run "$m-hung" | tail -1) && rank=$(rank_of "$stopped") && kill -STOP "$stopped" || return 1
    wait $launcher
    [ $? -eq 75 ] && [ "$(grep -cE 'kedge train: | for 3 s' "$work/said")" -eq 1 ] &&
        said "kedge train: .*: rank $((rank == 0)) \\(.*\\): nothing (from|accepted by) rank $rank \\(.*\\) for 3 s"
}
# the second of two ranks is told otherwise: both end with status 2 and one line, whatever the key
unlike() {
    for k in "rollout.samples=5:rollout.samples is 5, rank 0 has 4" "rollout.prompts=5:rollout.prompts is 5, rank 0 has 4" \
        "eval.problems=6:eval.problems is 6, rank 0 has 5" "model.dtype=fp32:model.dtype is fp32, rank 0 has auto" \
        "run.seed=7:run.seed is 7, rank 0 has 1" "--resume:command is train --resume, rank 0 has train"; do
        set -- model.path=$digits task.name=digits data.train=$digits/train.jsonl data.val=$digits/test.jsonl rollout.samples=4 \
            rollout.prompts=4 rollout.max_tokens=12 train.steps=1 train.lanes=4 eval.problems=5 run.dir="$work/$m-unlike"
        $launch -n 1 ./kedge train "$@" : -n 1 ./kedge train "$@" "${k%%:*}" >"$work/said" 2>&1
        [ $? -eq 2 ] && said "^kedge train: rank 1 \\(.*\\): ${k#*:};" && [ "$(grep -c '^kedge' "$work/said")" -eq 1 ] || return 1
    done
    [ ! -e "$work/$m-unlike" ]
}
threads_may_differ() {
    set -- model.path=$digits task.name=digits data.train=$digits/train.jsonl data.val=$digits/test.jsonl rollout.samples=4 \
        rollout.prompts=4 rollout.max_tokens=12 train.steps=1 train.lanes=4 eval.problems=5 run.dir="$work/$m-threads"
    $launch -n 1 ./kedge train "$@" run.threads=1 : -n 1 ./kedge train "$@" run.threads=2 >"$work/said" 2>&1
}
unlike_evaluation() {
    set -- --model $digits --task digits --data $digits/test.jsonl --max-tokens 12
    $launch -n 1 ./kedge eval "$@" --problems 6 : -n 1 ./kedge eval "$@" --problems 7 >"$work/said" 2>&1
    [ $? -eq 2 ] && said "rank 1 \\(.*\\): sets.val.problems is 7, rank 0 has 6;"
}
other_command() {
    $launch -n 1 ./kedge bench ranks : -n 1 ./kedge eval --model $digits --task digits >"$work/said" 2>&1
    [ $? -eq 2 ] && said "command is eval, rank 0 has bench ranks;"
}
# the first rank is stopped before MPI has started: the others do not wait for ever
stopped_at_the_start() {
    train "$m-start" 3 $long ranks.wait_s=3 &
    launcher=$!
    for _ in $(seq 3000); do
        for p in $(of_run "$m-start"); do
            [ "$(rank_of "$p" 2>/dev/null)" = 0 ] && kill -STOP "$p" && break 2
        done
        sleep 0.01
    done
    for _ in $(seq 1200); do kill -0 $launcher 2>/dev/null || break && sleep 0.1; done
    ! kill -0 $launcher 2>/dev/null && ! wait $launcher && said "ranks.wait_s"
}
# rank_of PID: as its launcher numbers it
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p'; }
too_few_lanes() { ! train "$m-few" 2 train.lanes=1 && said "train.lanes: expected at least one for each of 2 ranks, found 1"; }
said_once() { [ "$(grep -c 'train.lanes: expected' "$work/said")" -eq 1 ]; }
# over TCP, where the library's own end may not return: of twenty short runs each ends, and one that has nothing to say against it
all_end() {
    for _ in $(seq 20); do
        UCX_TLS=tcp,self timeout -k 1 30 $launch -n 3 ./kedge train model.path=$digits task.name=digits train.lanes=1 \
            data.train=$digits/train.jsonl run.dir="$work/x" >"$work/said" 2>&1
        [ $? -eq 1 ] && said_once || return 1
    done
    UCX_TLS=tcp,self train "$m-tcp" 3 train.steps=1
}
without_shim() {
    mkdir -p "$work/bin" && cp ./kedge "$work/bin/kedge" || return 1
    ! $launch -n 2 "$work/bin/kedge" train preset=grpo model.path=$digits run.dir="$work/x" task.name=digits train.lanes=2 \
        data.train=$digits/train.jsonl >"$work/said" 2>&1 && said "expected kedge-mpi-$m.so"
}
# bench RANKS OVER COMMAND...: six sizes, what foretells them and a gradient, said by one rank
bench() {
    ranks=$1 over=$2
    shift 2
    OMP_NUM_THREADS=1 "$@" --json >"$work/said" 2>&1 && [ "$(wc -l <"$work/said")" -eq 8 ] && said "\"over\": \"$over\", \"alpha\": " &&
        [ "$(grep -c "\"name\": \"exchange\", \"ranks\": $ranks, \"bytes\": " "$work/said")" -eq 6 ]
}
benched_here() { bench 2 "shared memory" ./kedge bench ranks --ranks 2; }
# shellcheck disable=SC2086
benched() { bench 3 mpi $launch -n 3 ./kedge bench ranks; }
# doctor FOLDER: two ranks, the second in FOLDER
doctor() { $launch -n 1 -wdir "$work" "$PWD/kedge" doctor --json : -n 1 -wdir "$1" "$PWD/kedge" doctor --json >"$work/said" 2>&1; }
checked() { doctor "$work" && [ "$(grep -c '"result": "holds"' "$work/said")" -eq 11 ] && said '"rank": 1, .*"result": "holds"'; }
apart() {
    ! doctor "$work/bin" && said '"shared folder", "result": "FAILS"' && said '"sum over ranks", "result": "holds"' &&
        [ "$(grep -c 'on some rank or between ranks' "$work/said")" -eq 1 ]
}
unjoined() {
    ! SLURM_NTASKS=4 ./kedge train model.path=$digits task.name=digits data.train=$digits/train.jsonl run.dir="$work/x" \
        >"$work/said" 2>&1 && said "SLURM_NTASKS is 4" && [ ! -e "$work/x" ]
}
# the script of a job of four tasks on one machine becomes ranks itself
of_a_job() { SLURM_NTASKS=4 SLURM_JOB_NUM_NODES=1 ./kedge eval --model $digits --task digits --data $digits/test.jsonl --problems 6 \
    --max-tokens 12 --out "$work/job" --ranks 2 >"$work/said" 2>&1 && diff -r "$work/eval" "$work/job"; }
# a launcher that the library does not hear: each process would be a run of its own
deaf_openmpi() { PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.1.0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 "$@"; }
deaf_mpich() { PMI_SIZE=2 "$@"; }
deaf() {
    ! deaf_$m ./kedge train model.path=$digits task.name=digits data.train=$digits/train.jsonl run.dir="$work/x" \
        train.lanes=2 >"$work/said" 2>&1 && said "expected the 2 processes .* found 1 by kedge-mpi-$m.so" && [ ! -e "$work/x" ]
}

told=$work/said
pass "tasks that Slurm did not join are refused" unjoined
pass "a run of one process" one_process
pass "a longer one" one_process_long
pass "one that lags a step" one_that_lags
pass "an evaluation of one process" one_evaluation
pass "exchanges of --ranks are measured" benched_here
pass "the script of a job of Slurm's on one machine becomes its ranks" of_a_job
for m in openmpi mpich; do
    command -v mpirun.$m pgrep >/dev/null 2>&1 && [ -e kedge-mpi-$m.so ] || {
        skipped "ranks over $m" "mpirun.$m, kedge-mpi-$m.so or pgrep is not here"
        continue
    }
    case $m in
    openmpi) launch="mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none" ;;
    mpich) launch="mpirun.mpich" ;;
    esac
    pass "$m: two ranks make the run of one" equal_for 2
    pass "$m: and three" equal_for 3
    pass "$m: a rank that samples beside two that train makes the run of one" rollout_rank
    pass "$m: an evaluation by three leaves the folder of one" evaluated
    pass "$m: a killed rank ends all of them" killed
    pass "$m: three ranks go on to the weights of the whole run" resumed
    pass "$m: a rank that hangs ends all of them, by name" hung
    pass "$m: a rank that is stopped before MPI has started ends all of them" stopped_at_the_start
    pass "$m: ranks that were told otherwise end by the name of the key" unlike
    pass "$m: which threads are not" threads_may_differ
    pass "$m: evaluations that are not one end so too" unlike_evaluation
    pass "$m: and other commands" other_command
    pass "$m: fewer lanes than ranks are refused" too_few_lanes
    pass "$m: by one rank" said_once
    [ $m = mpich ] && pass "$m: each of twenty runs over TCP ends" all_end
    pass "$m: a missing shim is named" without_shim
    pass "$m: a launcher that MPI does not hear is refused" deaf
    pass "$m: exchanges are measured" benched
    pass "$m: doctor checks every rank, and what is between them" checked
    pass "$m: folders that are not one are named" apart
done
exit $((failures > 0))
