#!/bin/sh
# A run over two machines: network namespaces with names and addresses of their own, between which there is a wire and
# nothing else, under each MPI that is here. They train what one process trains; when one is cut off, the ranks of the
# other end within the wait limit, by one line that names the lost one and its host, and both go on later. The disk is one.
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all "two machines" "./kedge is not built"
a=kedge-a-$$ b=kedge-b-$$
# what lives in a namespace is this test's
emptied() { for n in $a $b; do ip netns pids $n 2>/dev/null | xargs -r kill -9; done; }
trap 'emptied; ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
made() {
    ip netns add $a && ip netns add $b && ip link add wire netns $a type veth peer name wire netns $b &&
        ip -n $a addr add 10.213.7.1/24 dev wire && ip -n $b addr add 10.213.7.2/24 dev wire && for n in $a $b; do
        ip -n $n link set lo up && ip -n $n link set wire up || return 1
    done
}
made >"$work/out" 2>&1 || skip_all "two machines" "no network namespaces: $(head -1 "$work/out")"
command -v pgrep >/dev/null || skip_all "two machines" "pgrep is not here"

# in the place of ssh: COMMAND on the machine of an address
cat >"$work/at" <<AT
#!/bin/sh
while case \$1 in -*) true ;; *) false ;; esac; do shift; done
case \$1 in 10.213.7.1) m=a ;; 10.213.7.2) m=b ;; *) exit 1 ;; esac
shift
exec ip netns exec kedge-\$m-$$ unshare -u sh -c "hostname machine-\$m && exec \$*"
AT
chmod +x "$work/at"
digits=tests/data/verl_digit_llama
run="model.path=$digits task.name=digits data.train=$digits/train.jsonl data.val=$digits/test.jsonl rollout.prompts=4
    rollout.samples=4 rollout.max_tokens=12 train.steps=16 train.updates_per_step=2 train.lanes=4 optim.lr=1e-3
    kl.estimator=k3 kl.beta=0.05 anchor.kind=ema checkpoint.every=2 checkpoint.dtype=fp32 eval.at_start=false
    eval.problems=5 run.threads=1 ranks.wait_s=3"
mca="--mca plm_rsh_agent $work/at --mca btl self,tcp --mca btl_tcp_if_include wire --mca oob_tcp_if_include wire"
# start DIR FLAGS...: three ranks, two of them on the first machine
start() {
    dir=$1
    shift
    case $m in # over the wire alone: both libraries see that the machines share memory
    openmpi) launch="env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --bind-to none $mca
        -H 10.213.7.1:2,10.213.7.2:1" ;;
    mpich) launch="env UCX_TLS=tcp,self mpirun.mpich -launcher ssh -launcher-exec $work/at -hosts 10.213.7.1:2,10.213.7.2:1" ;;
    esac
    # shellcheck disable=SC2086
    "$work/at" 10.213.7.1 $launch -n 3 ./kedge train $run run.dir="$work/$dir" "$@" >"$work/said" 2>&1
}
ranks() { pgrep -f "^[.]/kedge train .*run.dir=$work/$1( |$)"; }
until_() { # until_ COMMAND...: for half a minute
    for _ in $(seq 300); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
gone() { [ -z "$(ranks "$1")" ]; }
loss_said() { grep -qE '^kedge train: .*: rank 0 \(machine-a\): nothing .* rank 2 \(machine-b\)' "$work/said"; }
cut_off() {
    start "$m" &
    until_ [ -d "$work/$m/checkpoints/step-000002" ] && [ "$(ranks "$m" | wc -l)" -eq 3 ] && ip -n $b link set wire down &&
        until_ gone "$m" && until_ loss_said || return 1
    emptied # a launcher may wait for its part on the other machine
    wait
    # what stands behind the name may be lost with the launcher, which forwards it
    grep -E 'kedge train: | for 3 s' "$work/said" >"$work/lines"
    loss_said && [ "$(wc -l <"$work/lines")" -eq 1 ] && [ ! -d "$work/$m/checkpoints/step-000016" ]
}
same() { cmp "$work/one/checkpoints/latest/$1" "$work/$m/checkpoints/latest/$1"; }
on_both() { ip -n $b link set wire up && start "$m" --resume && same model/model.safetensors && same state.safetensors; }
# shellcheck disable=SC2086
one_process() { ./kedge train $run run.dir="$work/one" >"$work/said" 2>&1; }

told=$work/said
pass "a run of one process" one_process
for m in openmpi mpich; do
    command -v mpirun.$m >/dev/null 2>&1 && [ -e kedge-mpi-$m.so ] || {
        skipped "two machines over $m" "mpirun.$m or kedge-mpi-$m.so is not here"
        continue
    }
    pass "$m: a machine that is cut off ends the others, by one line that names it" cut_off
    pass "$m: both go on to the weights of one process" on_both
done
exit $((failures > 0))
