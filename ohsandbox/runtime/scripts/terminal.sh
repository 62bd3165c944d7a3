# The terminal side of a session: $1 is its private directory, made by keeper.sh at the same time.
# The shell is interactive, so Ctrl-C and errors return it to its next command and never end it, but it reads
# commands from a FIFO: nothing travels through the terminal's input, which belongs to the programs.

# raw output: bytes are unchanged, and 180 MB/s instead of 120; no echo: typed input is not the program's output
stty -opost -echo cols 160 rows 50 2>/dev/null
OHSANDBOX_TTY=$(tty) || OHSANDBOX_TTY=/dev/tty
# gVisor's terminal has no name there, and is no controlling terminal: descriptor 9 stands for it
true 2>/dev/null <>"$OHSANDBOX_TTY" || OHSANDBOX_TTY=/proc/$$/fd/9
n=0
until [ -p "$1/out" ]; do
  n=$((n + 1))
  [ $n -lt 5000 ] || sleep 0.02 2>/dev/null || sleep 1
  [ $n -lt 6000 ] || exit 98
done
[ -O "$1" ] && [ ! -L "$1" ] || exit 98
echo $$ >"$1/pid"   # for keeper.sh, when the host is gone
export OHSANDBOX_TTY
unset ENV PROMPT_COMMAND TMOUT   # BASH_ENV is for scripts: no interactive shell reads it
export HISTFILE=   # if unset, bash reads ~/.bash_history before its first command, and blocks if that is a FIFO
# a terminal that no process has open hangs up: descriptor 9 holds it until the shell has opened it
e=1
case $OHSANDBOX_TTY in
  # A shell takes its stderr for the terminal of its jobs where it cannot open /dev/tty. Each opening of a terminal has
  # a foreground group of its own there, so all use this one.
  /proc/*) exec 9<&0; e=9; export PS1= PS2= ;;   # it would print prompts
  *) exec 9<>"$OHSANDBOX_TTY" ;;
esac
if command -v bash >/dev/null; then
  exec bash --noprofile --norc --noediting -i <"$1/in" >/dev/null 2>&$e
fi
case $(set -o) in *monitor*) ;; *) exit 97 ;; esac   # no job control: shell.py tells it
# by what name ever: bash and zsh would edit lines, which a Tab in a command completes, zsh on the terminal, too
exec sh ${BASH_VERSION:+--noprofile --norc --noediting} ${ZSH_VERSION:++o zle +o promptsp +o promptcr} -i <"$1/in" >/dev/null 2>&$e
