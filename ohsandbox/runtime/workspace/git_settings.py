"""git's settings: a reader of configuration files, and the table of what a setting may name.

The keys are those of git-config(1), git-svn(1) and git-lfs-config(5), up to git 2.55; a test compares them with
`git help --config` of the installed git, so that the keys of a newer one are judged.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Names(enum.Enum):
    """What the value of a setting names."""

    COMMAND = "a command"
    DIRECTORY = "a directory of programs"
    FILE = "a file of settings"
    REDIRECTION = "none of these, but the setting leads git elsewhere or makes it trust more"
    NOTHING = "nothing that git runs or obeys"
    UNKNOWN = "a setting that git does not document"


_NAMING = {
    Names.COMMAND: """
        alias.* browser.cmd browser.path core.alternaterefscommand core.askpass core.editor core.fsmonitor
        core.gitproxy core.pager core.sshcommand credential.helper diff.command diff.external
        diff.textconv difftool.cmd difftool.path filter.clean filter.process filter.smudge
        gc.recentobjectshook gpg.defaultkeycommand gpg.program guitool.cmd hook.command imap.tunnel
        instaweb.browser instaweb.httpd interactive.difffilter lfs.clean lfs.path lfs.smudge man.cmd
        man.path merge.driver mergetool.cmd mergetool.path pager.* remote.receivepack remote.uploadpack
        remote.vcs sendemail.cccmd sendemail.headercmd sendemail.sendmailcmd sendemail.smtpserver
        sendemail.tocmd sequence.editor submodule.update svn.authorsprog trailer.cmd trailer.command
        uploadpack.packobjectshook url.insteadof url.pushinsteadof
    """,
    Names.DIRECTORY: """
        core.hookspath init.templatedir instaweb.modulepath
    """,
    Names.FILE: """
        core.attributesfile include.path includeif.path
    """,
    Names.REDIRECTION: """
        bundle.* core.worktree credential.* extensions.* fsmonitor.* gitcvs.* help.browser http.* imap.*
        promisor.* protocol.* remote.proxy remote.proxyauthmethod safe.* sendemail.* trace2.* web.browser
    """,
}
"""`section.name` in lower case, without a subsection; `*` stands for any name."""

ENVIRONMENT = {
    Names.COMMAND: [
        "BROWSER",
        "EDITOR",
        "GIT_ASKPASS",
        "GIT_EDITOR",
        "GIT_EXTERNAL_DIFF",
        "GIT_PAGER",
        "GIT_PROXY_COMMAND",
        "GIT_SEQUENCE_EDITOR",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "PAGER",
        "SSH_ASKPASS",
        "VISUAL",
    ],
    Names.DIRECTORY: ["GIT_EXEC_PATH", "GIT_TEMPLATE_DIR"],
    Names.FILE: ["GIT_ATTR_GLOBAL", "GIT_CONFIG", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"],
}
"""Variables that name the same (git(1), git-var(1))."""

_HARMLESS = """
    *: advice author bitmappseudomerge color column committer completion fastimport feature fsck gitweb gui i18n
        index lfs maintenance notes pretty reftable remotes repack showbranch sparse splitindex uploadpackfilter
        user versionsort
    add: ignoreerrors usebuiltin
    am: keepcr messageid threeway
    apply: ignorewhitespace whitespace
    attr: tree
    blame: blankboundary coloring date ignorerevsfile markignoredlines markunblamablelines showemail showroot
    branch: autosetupmerge autosetuprebase deletemerged description merge mergeoptions pushremote rebase remote
        sort
    checkout: defaultremote guess thresholdforparallelism workers
    clean: requireforce
    clone: defaultremotename filtersubmodules rejectshallow
    commit: cleanup gpgsign status template verbose
    commitgraph: changedpaths changedpathsversion generationversion maxnewfilters readchangedpaths
    core: abbrev alternaterefsprefixes autocrlf bare bigfilethreshold checkroundtripencoding checkstat
        commentchar commentstring commitgraph compression configlocktimeout createobject deltabasecachelimit eol
        excludesfile filemode filesreflocktimeout fsmonitorhookversion fsync fsyncmethod fsyncobjectfiles
        hidedotfiles ignorecase ignorestat lockfilepid logallrefupdates loosecompression maxtreedepth
        multipackindex notesref packedgitlimit packedgitwindowsize packedrefstimeout precomposeunicode
        prefersymlinkrefs preloadindex protecthfs protectntfs quotepath repositoryformatversion
        restrictinheritedhandles safecrlf sharedrepository sparsecheckout sparsecheckoutcone splitindex symlinks
        trustctime unsetenvvars untrackedcache usereplacerefs warnambiguousrefs whitespace
    credentialcache: ignoresighup
    credentialstore: locktimeoutms
    diff: algorithm autorefreshindex binary cachetextconv colormoved colormovedws context dirstat dstprefix
        guitool ignoresubmodules indentheuristic interhunkcontext mnemonicprefix noprefix orderfile relative
        renamelimit renames srcprefix statgraphwidth statnamewidth submodule suppressblankempty tool
        trustexitcode wordregex wserrorhighlight xfuncname
    difftool: guidefault prompt trustexitcode
    extensions: compatobjectformat noop noop-v1 objectformat partialclone preciousobjects refstorage
        relativeworktrees submodulepathconfig worktreeconfig
    fetch: all bundlecreationtoken bundleuri followremotehead fsckobjects negotiationalgorithm output parallel
        prune prunetags recursesubmodules showforcedupdates skiplist unpacklimit writecommitgraph
    format: attach cc commitlistformat coverfromdescription coverletter encodeemailheaders filenamemaxlength
        forceinbodyfrom from headers mboxrd noprefix notes numbered outputdirectory pretty signature
        signaturefile signoff subjectprefix suffix thread to useautobase
    gc: aggressivedepth aggressivewindow auto autodetach autopacklimit bigpackthreshold cruftpacks logexpiry
        maxcruftsize packrefs pruneexpire reflogexpire reflogexpireunreachable repackfilter repackfilterto
        rerereresolved rerereunresolved worktreepruneexpire writecommitgraph
    gpg: allowedsignersfile format mintrustlevel revocationfile
    grep: column extendedregexp fallbacktonoindex fullname linenumber patterntype threads
    guitool: argprompt confirm needsfile noconsole norescan prompt revprompt revunmerged title
    help: autocorrect format htmlpath
    hook: enabled event jobs parallel
    init: defaultbranch defaultobjectformat defaultrefformat defaultsubmodulepathconfig
    instaweb: local port
    interactive: singlekey
    log: abbrevcommit date decorate diffmerges excludedecoration follow graphcolors graphindent
        initialdecorationset mailmap showroot showsignature
    lsrefs: unborn
    mailinfo: scissors
    mailmap: blob file
    man: viewer
    merge: autostash branchdesc conflictstyle defaulttoupstream directoryrenames ff guitool log name recursive
        renamelimit renames renormalize stat suppressdest tool verbosity verifysignatures
    mergetool: guidefault hasoutput hideresolved keepbackup keeptemporaries layout prompt trustexitcode
        useautomerge writetotemp
    pack: allowpackreuse compression deltacachelimit deltacachesize depth indexversion island islandcore
        packsizelimit preferbitmaptips readreverseindex threads usebitmapboundarytraversal usebitmaps
        usepathwalk usesparse window windowmemory writebitmaphashcache writebitmaplookuptable writebitmaps
        writereverseindex
    pull: autostash ff octopus rebase twohead
    push: autosetupremote default followtags gpgsign negotiate pushoption recursesubmodules usebitmaps
        useforceifincludes
    rebase: abbreviatecommands autosquash autostash backend forkpoint instructionformat maxlabellength
        missingcommitscheck rebasemerges reschedulefailedexec stat updaterefs
    receive: advertiseatomic advertisepushoptions autogc certnonceseed certnonceslop denycurrentbranch
        denydeletecurrent denydeletes denynonfastforwards fsckobjects hiderefs keepalive maxinputsize
        procreceiverefs shallowupdate skiplist unpacklimit updateserverinfo
    remote: advertisedas fetch followremotehead mirror negotiationinclude negotiationrestrict partialclonefilter
        promisor prune prunetags push pushdefault pushurl serveroption skipdefaultupdate skipfetchall tagopt url
    replay: refaction
    rerere: autoupdate enabled
    revert: reference
    sideband: allowcontrolcharacters
    ssh: variant
    stash: index showincludeuntracked showpatch showstat
    status: aheadbehind branch comparebranches displaycommentprefix relativepaths renamelimit renames short
        showstash showuntrackedfiles submodulesummary
    submodule: active alternateerrorstrategy alternatelocation branch fetchjobs fetchrecursesubmodules gitdir
        ignore propagatebranches recurse url
    tag: forcesignannotated gpgsign sort
    tar: umask
    trailer: ifexists ifmissing key separators where
    transfer: advertiseobjectinfo advertisesid bundleuri credentialsinurl fsckobjects hiderefs unpacklimit
    uploadarchive: allowunreachable
    uploadpack: allowanysha1inwant allowfilter allowreachablesha1inwant allowrefinwant allowtipsha1inwant
        hiderefs keepalive
    worktree: guessremote userelativepaths
"""
"""Settings that name nothing which git runs or obeys, as `section: names`; the first line lists whole sections. Files
of data, such as `commit.template` and `blame.ignoreRevsFile`, are among them."""

_SECTION = re.compile(r'[ \t\r\n]*\[[ \t]*([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?[ \t]*\]')
_KEY = re.compile(r"[ \t\r]*([A-Za-z][A-Za-z0-9-]*)[ \t\r]*")
_PLAIN = re.compile(r'[^ \t\r\n\\"#;]+')
_QUOTED = re.compile(r'[^\\"\n]+')
_ESCAPED = {"t": "\t", "b": "\b", "n": "\n", "\n": ""}


class Setting(NamedTuple):
    """A setting of a configuration file."""

    key: str
    """`section.name` in lower case; "?" for a line that is not understood."""
    value: str
    subsection: str = ""


def read_settings(text: str) -> Iterator[Setting]:
    """Yield the settings of a configuration file, as git reads them, except that it goes on after a line in error."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    section, subsection, at = "", "", 0
    while at < len(text):
        while header := _SECTION.match(text, at):
            section, _, dotted = header[1].lower().partition(".")
            subsection = dotted if header[2] is None else re.sub(r"\\(.)", r"\1", header[2])
            at = header.end()
        line = text[at : _line_end(text, at)]
        key = _KEY.match(line)
        key_end = key.end() if key else 0
        if key and line[key_end : key_end + 1] == "=":
            value, at = _read_value(text, at + key_end + 1)
            yield Setting(f"{section}.{key[1].lower()}", value, subsection)
            continue
        at += len(line) + 1
        if key and line[key_end : key_end + 1] in {"", "#", ";"}:
            yield Setting(f"{section}.{key[1].lower()}", "true", subsection)
        elif (content := line.strip(" \t\r")) and content[0] not in "#;":
            yield Setting("?", content)


def _read_value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at a position, and the position after its line and the lines that continue it."""
    value, length, is_quoted = "", 0, False  # length: without the blanks at the end
    while at < len(text) and text[at] != "\n":
        if piece := (_QUOTED if is_quoted else _PLAIN).match(text, at):
            value += piece[0]
            at = piece.end()
        elif text[at] == '"':
            is_quoted = not is_quoted
            at += 1
        elif text[at] == "\\":
            value += _ESCAPED.get(text[at + 1 : at + 2], text[at + 1 : at + 2])
            at += 2
        elif text[at] in "#;":
            return value[:length], _line_end(text, at) + 1
        else:
            value += text[at] if value else ""
            at += 1
            continue
        length = len(value)
    return value[:length], at + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def names_of(key: str, subsection: str = "") -> Names:
    """Return what a setting with the key (`section.name` in lower case) names."""
    section = key.partition(".")[0]
    if subsection == "fsck" and section in {"fetch", "receive"}:  # `receive.fsck.badDate`, as `fsck.badDate`
        section = "fsck"
    return _NAMES.get(key) or _NAMES.get(f"{section}.*") or Names.UNKNOWN


def may_name_program(setting: Setting) -> bool:
    """Whether a setting may make git run a program, or lead it elsewhere; a URL with `::` also names a program."""
    is_harmless = names_of(setting.key, setting.subsection) is Names.NOTHING
    return not is_harmless or "::" in setting.value or setting.value.startswith("!")


def _read_table() -> dict[str, Names]:
    table: dict[str, Names] = {}
    for entry in re.split(r"\n    (?! )", _HARMLESS.strip()):
        section, names = entry.split(":")
        keys = [f"{name}.*" if section == "*" else f"{section}.{name}" for name in names.split()]
        table |= dict.fromkeys(keys, Names.NOTHING)
    return table | {key: kind for kind, keys in _NAMING.items() for key in keys.split()}


_NAMES = _read_table()
