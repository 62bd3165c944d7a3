"""Programs that the rules know. A program in no table is MEDIUM: its effect is unknown."""

from __future__ import annotations

from ohsandbox.conversation.approvals.rules import names, names_by_program

HARMLESS = names(
    """
    : . source [ [[ alias arch b2sum base32 base64 basename bat bc bg bind break cal cat cd cksum clear cloc cmp cmpname
    column comm compgen complete continue cp csplit cut date dc declare df diff dir dircolors dirname dirs disown du
    echo egrep env exit expand export expr factor false fd fdfind fg fgrep file find fmt fold free function getconf
    getent getopts grep groups gunzip gzip hash head help hexdump history hostname iconv id install jobs join jq
    kill last let ln local locale logname logout ls lsattr lsblk lscpu lsof mapfile md5sum mkdir mktemp mv nl nm
    nproc numfmt objdump od paste pathchk pgrep popd pr printenv printf ps pstree pushd pwd read readarray readelf
    readlink readonly realpath return rev rg rm rmdir sed awk gawk mawk nawk seq set sha1sum sha224sum sha256sum
    sha384sum sha512sum shift shopt shuf size sleep sort split stat strings strip sum suspend tac tail tee test time
    times top touch tput tr tree true truncate tsort tty type typeset ulimit umask unalias uname unexpand uniq
    unlink unset unxz uptime users vmstat w wait wc whereis which who whoami xmllint xxd xz xzcat yes yq zcat zdiff
    zgrep zip unzip zipinfo tar bzip2 bunzip2 zstd unzstd chmod chown chgrp dd
    """
)
"""Programs of the shell and the base system: they read, print, or write where their arguments say, which rules
check."""

DEVELOPMENT = names(
    """
    pytest py.test tox nox mypy pyright ruff black isort flake8 pylint pyflakes autopep8 yapf bandit coverage
    pydocstyle sphinx-build mkdocs pre-commit cython vulture codespell make gmake cmake ctest ninja meson autoconf
    automake configure gcc g++ cc c++ clang clang++ clang-format clang-tidy ld as ar ranlib cpp rustc rustfmt gofmt
    golint golangci-lint staticcheck goimports tsc eslint prettier jest vitest mocha webpack vite rollup esbuild
    next nuxt ng playwright cypress stylelint biome turbo nx javac java jar mvn mvnw gradle gradlew dotnet kotlinc
    scalac sbt swift swiftc xcodebuild phpunit composer rspec rake rubocop stack cabal mix rebar3 zig nim crystal
    ocamlc dune latexmk pdflatex bibtex pandoc dot shellcheck shfmt hadolint protoc buf sqlite3 patch diffstat ctags
    indent cppcheck valgrind gcov lcov flutter dart bazel just task
    """
)
"""Programs that build and test the workspace by its own files: they run only the workspace's code."""

READING_SUBCOMMANDS = names_by_program({
    "npm": "test t run run-script start ls list outdated view version why explain root prefix bin help audit pack",
    "pnpm": "test run start ls list outdated why root bin help",
    "yarn": "test run start list why info build lint help",
    "bun": "test run build",
    "deno": "test run check fmt lint",
    "cargo": "build b check c test t run r clippy fmt doc bench tree metadata clean version",
    "go": "build test vet fmt list env version doc run mod clean",
    "pip": "list show freeze check help index",
    "pip3": "list show freeze check help index",
    "uv": "run tree lock version",
    "poetry": "run check show env version build",
    "pipenv": "run graph",
    "pdm": "run list show",
    "hatch": "run env test fmt build version",
    "rye": "run test lint fmt",
    "bundle": "exec list show check",
    "conda": "list info env run search",
    "docker": "ps images logs inspect version info stats top port diff events history context",
    "podman": "ps images logs inspect version info stats top port diff events history",
    "kubectl": "get describe logs version top explain config api-resources cluster-info",
    "helm": "list status get show template lint version history",
    "terraform": "plan validate fmt show output version state graph",
    "systemctl": "status list-units list-unit-files is-active is-enabled show cat",
    "apt": "list show search policy",
    "apt-get": "check",
    "apt-cache": "show search policy depends rdepends madison pkgnames",
    "dpkg": "",
    "brew": "list info search",
    "rustup": "show component target",
    "gem": "list info search",
    "gh": "view list status diff checks",
})  # fmt: skip
"""Programs with subcommands, and those of their subcommands that only read or run only the workspace's code."""
