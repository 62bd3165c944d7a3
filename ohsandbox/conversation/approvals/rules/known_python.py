"""Modules and names of Python code that the rules know: the harmless ones, and those that evaluate or load code."""

from __future__ import annotations

from ohsandbox.conversation.approvals.rules import names

HARMLESS_MODULES = names(
    """
    __future__ abc argparse array ast base64 binascii bisect calendar cmath collections colorsys configparser contextlib
    copy csv dataclasses datetime decimal difflib dis email enum errno fnmatch fractions functools getopt glob graphlib
    gzip hashlib heapq hmac html inspect io ipaddress itertools json keyword linecache locale logging math mimetypes
    numbers operator os pathlib platform pprint queue random re reprlib secrets shlex shutil stat statistics string
    stringprep struct subprocess symtable sys sysconfig tarfile tempfile textwrap threading time timeit token tokenize
    tomllib traceback types typing unicodedata unittest uuid warnings weakref xml zipfile zlib zoneinfo asyncio bz2 lzma
    concurrent doctest filecmp fileinput getpass gettext importlib ntpath posixpath pydoc selectors signal site sqlite3
    """
)
"""Modules of the standard library whose import does nothing; what is called in them is looked at."""

EVALUATES = names(
    """
    exec eval compile __import__ globals locals vars __builtins__ __subclasses__ __globals__ __getattribute__
    __loader__ __code__ __reduce__ import_module load_module exec_module run_path run_module attrgetter methodcaller
    CDLL PyDLL WinDLL cdll pythonapi FunctionType CodeType dlopen unpack_archive extractall extract loads_unsafe kill
    killpg register_extension get_type_hints __self__ _getframe set_trace
    breakpoint interact runsource runcode push_source
    """
)
"""Names that evaluate text, reach everything by computed names, unpack wherever an archive says, or end processes."""

LOG_FILES = names(
    "FileHandler RotatingFileHandler TimedRotatingFileHandler WatchedFileHandler basicConfig fileConfig dump_stats"
)
"""Names that are given a file to write, other than `open`."""

HARMLESS_CALLS = names(
    """
    abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict dir divmod enumerate filter float
    format frozenset getattr hasattr hash help hex id input int isinstance issubclass iter len list map max memoryview
    min next object oct open ord pow print property range repr reversed round set slice sorted staticmethod str sum
    super tuple type zip Exception ValueError TypeError KeyError RuntimeError SystemExit StopIteration AssertionError
    append extend insert pop clear index count sort reverse copy get items keys values update setdefault popitem add
    discard union intersection difference issubset issuperset join split rsplit splitlines strip lstrip rstrip replace
    startswith endswith find rfind lower upper title capitalize casefold swapcase center ljust rjust zfill encode decode
    format_map partition rpartition isdigit isalpha isalnum isspace isupper islower isnumeric isidentifier translate
    maketrans expandtabs removeprefix removesuffix read readline readlines write writelines close seek tell flush
    load loads dump dumps match fullmatch search findall finditer sub subn group groups groupdict start end span escape
    compile exists is_file is_dir is_symlink isfile isdir islink stat lstat getsize getmtime read_text read_bytes
    write_text write_bytes iterdir rglob glob iglob resolve absolute relative_to with_suffix with_name joinpath
    expanduser abspath realpath basename dirname splitext normpath listdir walk scandir getcwd cwd home environ getenv
    cpu_count getpid uname mkdir makedirs touch unlink remove rmdir rename symlink symlink_to copy2 copyfile copytree
    move chmod chown rmtree removedirs Path PurePath PosixPath now today utcnow strftime strptime isoformat
    fromisoformat timedelta date datetime time sleep perf_counter monotonic process_time time_ns total_seconds timestamp
    sqrt floor ceil log log2 log10 exp sin cos tan atan pi gcd factorial isclose fsum prod mean median stdev randint
    choice choices shuffle sample uniform seed random Counter defaultdict OrderedDict deque namedtuple most_common
    chain product permutations combinations islice groupby accumulate repeat count zip_longest reduce partial
    lru_cache cache wraps dataclass field fields asdict replace reader writer writerow writerows DictReader DictWriter
    writeheader md5 sha1 sha256 sha512 blake2b hexdigest digest new b64encode b64decode b32encode urlsafe_b64encode
    urlsafe_b64decode hexlify unhexlify dedent indent wrap fill shorten pprint pformat ArgumentParser add_argument
    parse_args urlparse urlsplit quote unquote urlencode urljoin parse_qs fromstring getroot iter findtext itertext
    uuid4 uuid1 getLogger info debug warning error exception critical Decimal Fraction StringIO BytesIO getvalue
    python_version system_version version platform machine node processor signature getsource getfile
    getdoc walk dump literal_eval unparse get_docstring format_exc print_exc quantiles unified_diff ndiff
    get_close_matches SequenceMatcher ratio namelist infolist getnames testzip ZipFile exit perf_counter_ns
    to_bytes from_bytes bit_length as_integer_ratio hypot radians degrees comb perm array zeros ones arange linspace
    reshape exit is_absolute as_posix samefile cmp suppress nullcontext contextmanager TemporaryDirectory mkdtemp
    NamedTemporaryFile gettempdir run call check_call check_output Popen system popen getoutput getstatusoutput
    get_event_loop gather create_task exit_code main TestCase
    """
)
"""Names of functions and methods that only compute, or whose files and commands are looked at on their own."""
