# Sent to a session's shell (bash, dash or ash) before its first command. `command` bypasses a redefined printf or eval.
# Marks are written to the terminal, exactly where the output begins and ends; the exit code and directory are written
# to the keeper, where a program's output cannot be mistaken for them.
case $OHSANDBOX_TTY in /proc/*) exec 2>/dev/null; unset PS1 PS2 ;; *) exec 9>&- ;; esac   # see terminal.sh
PS1= PS2=
unset PROMPT_COMMAND PS0 HISTFILE
# ash takes SIGCHLD for the end of its input and would exit. An error of `set` in an interactive dash would discard the
# lines that it has read ahead; `command` makes it an ordinary error (POSIX, 2.8.1).
if [ "$BASH_VERSION" ]; then set +H +o history; history -c; else command set -o ignoreeof; fi 2>/dev/null
# Elsewhere a function of this name is removed before each command: below `command eval`, an error in a subshell of
# busybox's ash (1.35, 1.37) never returns
ohs_eval='\eval' ohs_v=   # no alias, either
[ -z "$BASH_VERSION" ] || ohs_eval='command eval'
ohs_tty=$OHSANDBOX_TTY ohs_s=0 ohs_w=kept ohs_done=
unset OHSANDBOX_TTY
# prints the environment for a successor of this shell; the host excludes secrets
ohs_save="command export -p"
ohs_last() { return "$1"; }
# A command may remove our files (`rm -rf /run/*`), and then another user may take their names. The keeper's descriptors
# stay, and the directory is made again, for the environment. Where it cannot be, nothing is reported: the shell is
# replaced by one with another directory. Nor is it made once the host has ended, with which the terminal goes and the
# keeper closes `in`: the keeper removes the directory, or another process its parent.
ohs_own='command [ -O "$ohs_dir" ] && command [ ! -L "$ohs_dir" ]'
ohs_mend='ohs_out=/proc/$ohs_keeper/fd/3
  (command [ -c "$ohs_tty" ] && command [ -e "/proc/$ohs_keeper/fd/4" ] || command exit; command umask 077
  command mkdir -p -- "${ohs_dir%/*}"; command mkdir -- "$ohs_dir"
  command eval "$ohs_own" && command : >"$ohs_dir/env") || command :'
# no prompts: nobody sees them, and the commands in them would run before each of our lines
ohs_plain='PS1= PS2=; command unset -v PROMPT_COMMAND PS0 || command :'
# `set -o vi` below `eval` crashes a bash without line editing (5.2): its input becomes the line editor's, while the text
# of eval is still read. Within a file that bash sources, it only notes the option.
ohs_source='command eval "$ohs_own" && command printf "%s\n" "command eval \"\$ohs_b\"" >|"$ohs_dir/source" && command . "$ohs_dir/source"'
# the environment is saved before the report, so that a shell killed right after the report has lost nothing
ohs_tell='{ command eval "$ohs_own" && command [ -p "$ohs_out" ] && command [ -e "$ohs_dir/env" ]; } || command eval "$ohs_mend"
  ! command eval "$ohs_own" || { command eval "$ohs_save" >|"$ohs_dir/env"
    command printf "%s %s %s %s %s %s\000" "$ohs_n" "$ohs_s" "$ohs_w" "${!:-0}" "${BASH_VERSION:-none}" "$PWD" >"$ohs_out"; }
  ohs_w=kept ohs_done=$ohs_n ohs_b=; command eval "$ohs_plain"'
# The text of a long command, from a file that another user may have replaced: what was opened must be ours.
ohs_text='{ command [ -f "$ohs_dir/command" ] && { command [ -O /proc/self/fd/8 ] && command cat <&8; } 8<"$ohs_dir/command"
  } || command printf %s "command echo \"Not run: another user has replaced the file of this command.\" >&2; ohs_last 126"'
ohs_greet='{ command read -r ohs_keeper <"$ohs_dir/keeper"; ohs_out=$ohs_dir/out
  command printf "%s 0 %s %s %s %s\000" \
    "$ohs_n" "$ohs_w" "$$" "${BASH_VERSION:-none}" "$ohs_keeper $ohs_tty $PWD" >"$ohs_out"
  ohs_w=kept; command eval "$ohs_save" >|"$ohs_dir/env"; } 2>/dev/null'
# words are expanded before redirections (POSIX, 2.9.1.1): in the second one the text of the command is removed, so that
# `set | grep X` does not find itself
ohs_stdio='<"${ohs_tty%$((ohs_c=0))/}" >"$ohs_tty"'
case $ohs_tty in /proc/*) ohs_stdio='<&"$((9+(ohs_c=0)))" >&9 9>&-' ;; esac
ohs_run='{ command [ -d "$PWD" ] || { ohs_w=lost; command cd -- "$ohs_home" || command cd /; }
  command ulimit -S -m "$ohs_m" || command :
  command printf "\033]7117;%s;begin\007" "$ohs_n" >"$ohs_tty"; ohs_last "$ohs_s"; } 2>/dev/null
{ '"$ohs_eval"' "${ohs_v:-$ohs_c}" '"$ohs_stdio"' 2>&1; ohs_s=$?; } 2>/dev/null
{ command printf "\033]7117;%s;end\007" "$ohs_n" >"$ohs_tty"; command eval "$ohs_tell"; } 2>/dev/null'
# with an EXIT trap set: a shell that exits undoes a command's redirection first, so the trap prints to our stdout
ohs_trapped='exec >"$ohs_tty" 2>&1; { '"$ohs_eval"' "$ohs_run"; } >/dev/null 2>&1; exec >/dev/null 2>&1'
ohs_late='{ ohs_l=$?; case $ohs_done in "$ohs_n") ;; *) ohs_s=$ohs_l
  command printf "\033]7117;%s;end\007" "$ohs_n" >"$ohs_tty"; command eval "$ohs_tell" ;; esac; } 2>/dev/null'
# bash runs it in a part of a pipeline as well, where an error ends that part
trap '{ ohs_s=$? ohs_w=left; case ${BASHPID-$$} in "$$") command eval "$ohs_tell" ;; esac; } 2>/dev/null' EXIT
