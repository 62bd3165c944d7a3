# What the kernel says of this process and its sandbox, as words `key:value` in $f; see docker/config/selfcheck.py. Builtins
# alone: the image may lack every program. Shells read these files byte by byte: 5 ms, so no further than needed.
while read -r k v _; do
  case $k in Uid: | CapEff: | CapBnd: | NoNewPrivs:) f="$f $k$v" ;; Seccomp:) f="$f $k$v" ;; Cpus_allowed_list:) f="$f $k$v" && break ;; esac
done </proc/self/status
while read -r k a b s h _; do
  case "$k $a $b" in
    'Max file size') f="$f fsize:$s,$h" ;;
    'Max open files') f="$f nofile:$h" && break ;;
  esac
done </proc/self/limits
case $f in
  *' fsize:'*) ;;
  *)   # gVisor has no such file; a block is 512 bytes, POSIX
    k=$(ulimit -Hf) f="$f nofile:$(ulimit -Hn)"
    case $k in *[!0-9]*) ;; *) f="$f fsize:$((k * 512))" ;; esac ;;
esac
n=
while read -r k _; do
  case $k in *:*) n="$n,${k%%:*}" ;; esac
done </proc/net/dev
f="$f interfaces:${n#,}"
r= # routes that reject
[ ! -r /proc/net/route ] || while read -r _ a _ s _ _ _ h _; do
  case $s in 0201) r="$r,$a/$h" ;; esac
done </proc/net/route
f="$f rejects:${r#,}"
read -r _ _ k _ </proc/version
f="$f kernel:$k"
read -r k s _ </proc/meminfo
f="$f MemTotal:$s"
# control groups, version 2 and version 1
c=/sys/fs/cgroup
one() { [ ! -r "$2" ] || { read -r s h <"$2" && f="$f $1:$s${h:+,$h}"; }; }
one memory $c/memory.max
one swap $c/memory.swap.max
one pids $c/pids.max
one cpu $c/cpu.max
one memory $c/memory/memory.limit_in_bytes
one memsw $c/memory/memory.memsw.limit_in_bytes
one pids $c/pids/pids.max
one quota $c/cpu/cpu.cfs_quota_us
one period $c/cpu/cpu.cfs_period_us
# mounts, but for the kernel's own file systems where they belong: /POINT:TYPE,ROOT, proc(5)
while read -r _ _ _ r p o t; do
  t=${t##*- }
  case $p:$t in /:*,upperdir=*) u=${t##*,upperdir=} && f="$f upper:${u%%,*}" ;; esac
  t=${t%% *}
  case $p:$o in /proc/sys:ro* | /proc/sysrq-trigger:ro* | /sys:ro* | /:ro*) f="$f ro$p:1" ;; esac
  case $p:$t in
    /proc:proc | /proc/*:proc | /proc/*:tmpfs | /proc/*:devtmpfs | /proc/*:fuse.lxcfs) ;;
    /sys:sysfs | /sys/*:sysfs | /sys/*:tmpfs | /sys/*:cgroup | /sys/*:cgroup2) ;;
    /workspace/*:* | /workspaces/*/*:*) ;; # the guard's own: docker/mounts/guard.py has looked at them; they may be thousands
    /dev/pts:devpts | /dev/console:devpts | /dev/mqueue:mqueue) ;;
    *) f="$f $p:$t,$r" ;;
  esac
done </proc/self/mountinfo
# what has no place in a sandbox
for p in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock; do
  [ ! -S $p ] || f="$f socket:$p"
done
for p in /proc/1/mem /proc/kcore /proc/keys; do
  [ ! -f $p ] || f="$f unmasked:$p"
done
[ ! -r /proc/2/comm ] || { read -r k </proc/2/comm && [ "$k" != kthreadd ] || f="$f kthreadd:1"; }
n=0
for p in /dev/nvidia[0-9] /dev/nvidia[0-9][0-9]; do
  [ ! -c $p ] || n=$((n + 1))
done
f="$f gpus:$n"
unset -f one
unset k v a b s h n c r p o t u
