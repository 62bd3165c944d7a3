/*
 * The gateway of a sandbox whose network is open: says in its network namespace which addresses lead nowhere.
 *
 *   gateway hold RULE...       for the container that owns the namespace: set the rules, drop everything, wait for good
 *   gateway lend RULE...       the same for a namespace that sandboxes use one after another: for each byte of standard
 *                              input the name server that the engine runs in it is from now on reachable (o), or not
 *                              (c), as at the beginning, and one more line `ready` is printed
 *   gateway once RULE...       for a container in a sandbox's namespace: set the rules, end
 *   gateway close              for a container in a namespace whose network is about to be taken away: the name server
 *                              that the engine runs in it, which outlives the network, is unreachable until the next
 *                              hold or once
 *   gateway resolvers          print the name servers of /etc/resolv.conf
 *
 * A RULE is one of these; of those of the first four kinds, the first that matches a packet decides.
 *   a ADDRESS/LENGTH[:PORT]    by the engine's routes (of TCP and UDP, where a port is given)
 *   u ADDRESS/LENGTH           unreachable
 *   g ADDRESS                  unreachable for each protocol, and yet the engine may make it the gateway, for which it
 *                              and the kernel look for the way to it: for no protocol, and for UDP without ports. A
 *                              rule names ports up to 65534; datagrams from and to 65535 are left to the policy
 *   d [ADDRESS]                port 53 of the name server, or of all of /etc/resolv.conf: by the engine's routes
 *   b ADDRESS/LENGTH           unreachable before all others, even if it is a broadcast address of the namespace
 *   r ADDRESS/LENGTH           a route that rejects, which /proc/net/route shows inside
 *   n ADDRESS/LENGTH           no such route, which an earlier call may have added
 *
 * The rules are of the kernel's routing policy, so they stand before there is an interface, and each that comes later
 * obeys them; IPv6 leads nowhere. A socket that names its device (SO_BINDTODEVICE, IP_PKTINFO) passes by them: where no
 * route is found the kernel takes the destination to be on the link. So each rule of IPv4 is a policy of IPsec's
 * framework (xfrm) as well, which decides over a packet however its route was found. On success one line `ready [NAME
 * SERVER]...` is printed, else what failed and its errno. No libc: one static program for an image of its own. Build it
 * with `make connector`.
 */

#include "start.h"

#if defined(__x86_64__)
static long open_read(const char *path) { return call(SYS_open, (long)path, 0, 0, 0, 0, 0); }
#else
static long open_read(const char *path) { return call(SYS_openat, -100 /* AT_FDCWD */, (long)path, 0, 0, 0, 0); }
#endif

enum { EEXIST = 17, ENOENT = 2, ESRCH = 3, EAFNOSUPPORT = 97, AF_INET = 2, AF_INET6 = 10, AF_NETLINK = 16, SOCK_RAW = 3 };

/* gcc calls these, even without a libc */
void *memcpy(void *target, const void *source, unsigned long count)
{
    u8 *to = target;
    const u8 *from = source;
    while (count--)
        *to++ = *from++;
    return target;
}

void *memset(void *target, int value, unsigned long count)
{
    u8 *to = target;
    while (count--)
        *to++ = (u8)value;
    return target;
}

static char line[512];
static u32 line_length;

static void say(const char *text)
{
    while (*text && line_length < sizeof line)
        line[line_length++] = *text++;
}

static void say_number(u32 number)
{
    char digits[11];
    u32 at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    say(digits + at);
}

static void end_line(void)
{
    say("\n");
    CALL(SYS_write, 1, line, line_length);
    line_length = 0;
}

static void fail(const char *what, const char *which, long result)
{
    line_length = 0;
    say("failed ");
    say(what);
    say(" ");
    say(which);
    say(" errno ");
    say_number((u32)-result);
    end_line();
    leave(1);
}

/* --- netlink (rtnetlink(7), linux/fib_rules.h) ------------------------------------------------------------------- */

enum { RTM_NEWROUTE = 24, RTM_DELROUTE = 25, RTM_NEWRULE = 32, RTM_DELRULE = 33, NLM_F_REQUEST = 1, NLM_F_ACK = 4, NLM_F_EXCL = 0x200,
       NLM_F_CREATE = 0x400, NLMSG_ERROR = 2, FRA_DST = 1, FRA_PRIORITY = 6, FRA_TABLE = 15, FRA_IP_PROTO = 22,
       FRA_SPORT_RANGE = 23, FRA_DPORT_RANGE = 24, FR_ACT_TO_TBL = 1, FR_ACT_UNREACHABLE = 7, RTA_DST = 1, RTN_UNREACHABLE = 7,
       RTPROT_STATIC = 4, TABLE_MAIN = 254, TABLE_LOCAL = 255, IPPROTO_TCP = 6, IPPROTO_UDP = 17 };
enum { FIRST = 1, LOCAL = 2, LISTED = 100, MAX_LISTED = 500 };

static struct { u32 length; u16 type, flags; u32 sequence, port; u8 body[256]; } message;
static long netlink;

static void begin_message(u16 type, u16 flags)
{
    memset(&message, 0, sizeof message);
    message.length = 16;
    message.type = type;
    message.flags = (u16)(NLM_F_REQUEST | NLM_F_ACK | flags);
}

static void append(const void *data, u32 count)
{
    memcpy((u8 *)&message + message.length, data, count);
    message.length += (count + 3) & ~3u;
}

static void attribute(u16 kind, const void *data, u32 count)
{
    u16 header[2] = { (u16)(4 + count), kind };
    append(header, sizeof header);
    append(data, count);
}

/* sends the message; returns 0, or what the kernel says */
static long ask(void)
{
    static struct { u32 length; u16 type, flags; u32 sequence, port; int error; u8 rest[1024]; } answer;
    long got;
    if ((got = call(SYS_sendto, netlink, (long)&message, message.length, 0, 0, 0)) < 0)
        return got;
    if ((got = call(SYS_recvfrom, netlink, (long)&answer, sizeof answer, 0, 0, 0)) < 20 || answer.type != NLMSG_ERROR)
        return got < 0 ? got : -5;
    return answer.error;
}

struct rule { u8 family, length, action, table, protocol; const void *address; u16 first, last; u32 priority; u16 ports; };

static long rule(u16 type, u16 flags, struct rule r)
{
    u8 header[12] = { r.family, r.length, 0, 0, r.table, 0, 0, r.action };
    u16 ports[2] = { r.first, r.last };
    u32 table = r.table;
    begin_message(type, flags);
    append(header, sizeof header);
    if (r.length)
        attribute(FRA_DST, r.address, r.family == AF_INET ? 4 : 16);
    attribute(FRA_PRIORITY, &r.priority, 4);
    if (r.table)
        attribute(FRA_TABLE, &table, 4);
    if (r.protocol) {
        attribute(FRA_IP_PROTO, &r.protocol, 1);
        if (r.first)
            attribute(r.ports ? r.ports : FRA_DPORT_RANGE, ports, sizeof ports);
    }
    return ask();
}

static void add(const char *told, struct rule r)
{
    long result = rule(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, r);
    if (result && result != -EEXIST)
        fail("rule", told, result);
}

/* --- policies (linux/xfrm.h) -------------------------------------------------------------------------------------- */

enum { NETLINK_XFRM = 6, XFRM_MSG_NEWPOLICY = 0x13, XFRM_MSG_FLUSHPOLICY = 0x1d,
       XFRM_POLICY_OUT = 1, ALLOW = 0, BLOCK = 1 };

static long xfrm;

/* over what goes to an address, at one port or, where that is 0, all; of all protocols where protocol is 0 */
static void add_policy(const char *told, struct rule r, u8 action)
{
    u8 port[4] = { (u8)(r.first >> 8), (u8)r.first, 0xff, 0xff }, kind[5] = { r.family, 0, r.length, 0, r.protocol };
    u8 decides[4] = { XFRM_POLICY_OUT, action };
    long rules = netlink, result;
    begin_message(XFRM_MSG_NEWPOLICY, 0);
    memcpy(message.body, r.address, 4);
    if (r.first)
        memcpy(message.body + 32, port, sizeof port);
    memcpy(message.body + 40, kind, sizeof kind);
    memset(message.body + 56, 0xff, 32); /* no limit of bytes and packets */
    memcpy(message.body + 152, &r.priority, 4);
    memcpy(message.body + 160, decides, sizeof decides);
    message.length += 168;
    netlink = xfrm;
    result = ask();
    netlink = rules;
    if (result && result != -EEXIST) /* the one before it decides */
        fail("policy", told, result);
}

/* --- what is told ------------------------------------------------------------------------------------------------ */

struct target { u8 address[4]; u8 length; u16 port; };

static int number(const char **text, u32 most, u32 *found)
{
    const char *at = *text;
    for (*found = 0; *at >= '0' && *at <= '9' && *found <= most; at++)
        *found = *found * 10 + (u32)(*at - '0');
    if (at == *text || *found > most)
        return 0;
    *text = at;
    return 1;
}

/* ADDRESS[/LENGTH][:PORT]; returns where it ends, 0 if it is none */
static const char *parse(const char *text, struct target *found)
{
    u32 value;
    for (int part = 0; part < 4; part++) {
        if ((part && *text++ != '.') || !number(&text, 255, &value))
            return 0;
        found->address[part] = (u8)value;
    }
    found->length = 32;
    found->port = 0;
    if (*text == '/') {
        text++;
        if (!number(&text, 32, &value))
            return 0;
        found->length = (u8)value;
    }
    if (*text == ':') {
        text++;
        if (!number(&text, 65535, &value) || !value)
            return 0;
        found->port = (u16)value;
    }
    return text;
}

enum { RESOLVERS = 8 };
static struct target resolvers[RESOLVERS];
static u32 resolver_count;

static void read_resolvers(void)
{
    static char text[16384];
    static const char word[] = "nameserver";
    long file = open_read("/etc/resolv.conf"), got, length = 0;
    if (file < 0)
        return;
    while (length < (long)sizeof text - 1 && (got = CALL(SYS_read, file, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    CALL(SYS_close, file, 0, 0);
    for (char *at = text; *at;) {
        u32 match = 0;
        while (match < sizeof word - 1 && at[match] == word[match])
            match++;
        if (match == sizeof word - 1) {
            for (at += match; *at == ' ' || *at == '\t'; at++)
                ;
            if (resolver_count < RESOLVERS && parse(at, &resolvers[resolver_count])
                && resolvers[resolver_count].address[0] != 127)
                resolver_count++;
        }
        while (*at && *at++ != '\n')
            ;
    }
}

static int holds(const struct target *range, const struct target *one)
{
    for (u32 bit = 0; bit < range->length; bit++)
        if ((range->address[bit / 8] ^ one->address[bit / 8]) & (0x80 >> bit % 8))
            return 0;
    return 1;
}

static void add_to_port(const char *told, const struct target *to, u16 port, u32 priority)
{
    struct rule r = { AF_INET, to->length, FR_ACT_TO_TBL, TABLE_MAIN, IPPROTO_UDP, to->address, port, port, priority, 0 };
    add(told, r);
    add_policy(told, r, ALLOW);
    r.protocol = IPPROTO_TCP;
    add(told, r);
    add_policy(told, r, ALLOW);
}

/* adds a route that rejects, or removes it; no error if that has been done */
static void reject(const char *told, const struct target *to, u16 type)
{
    u8 header[12] = { AF_INET, to->length, 0, 0, TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNREACHABLE };
    long result;
    begin_message(type, type == RTM_NEWROUTE ? NLM_F_CREATE | NLM_F_EXCL : 0);
    append(header, sizeof header);
    attribute(RTA_DST, to->address, 4);
    result = ask();
    if (result && result != (type == RTM_NEWROUTE ? -EEXIST : -ESRCH))
        fail("route", told, result);
}

static void add_listed(const char *told, u32 priority)
{
    struct target to = { { 0 }, 0, 0 };
    const char *end = told[0] && told[1] == ' ' ? parse(told + 2, &to) : 0;
    if (told[0] == 'd' && !told[1]) {
        read_resolvers();
        for (u32 i = 0; i < resolver_count; i++)
            add_to_port(told, &resolvers[i], 53, priority);
        return;
    }
    if (!end || *end)
        fail("rule", told, -22);
    struct rule all = { AF_INET, to.length, 0, 0, 0, to.address, 0, 0, told[0] == 'b' ? FIRST : priority, 0 };
    if (told[0] == 'u' || told[0] == 'g' || told[0] == 'b')
        add_policy(told, all, BLOCK);
    else if (told[0] == 'a' && !to.port)
        add_policy(told, all, ALLOW);
    switch (told[0]) {
    case 'd':
        if (resolver_count < RESOLVERS)
            resolvers[resolver_count++] = to;
        add_to_port(told, &to, 53, priority);
        break;
    case 'a':
        if (to.port)
            add_to_port(told, &to, to.port, priority);
        else
            add(told, (struct rule){ AF_INET, to.length, FR_ACT_TO_TBL, TABLE_MAIN, 0, to.address, 0, 0, priority, 0 });
        break;
    case 'u':
        add(told, (struct rule){ AF_INET, to.length, FR_ACT_UNREACHABLE, 0, 0, to.address, 0, 0, priority, 0 });
        break;
    case 'g': {
        struct rule r = { AF_INET, 32, FR_ACT_UNREACHABLE, 0, IPPROTO_UDP, to.address, 1, 65534, priority, 0 };
        add(told, r);
        r.ports = FRA_SPORT_RANGE;
        add(told, r);
        r.first = r.last = 0;
        for (u32 protocol = 1; protocol < 256; protocol++)
            if (protocol != IPPROTO_UDP) {
                r.protocol = (u8)protocol;
                add(told, r);
            }
        add(told, (struct rule){ AF_INET, 32, FR_ACT_TO_TBL, TABLE_MAIN, 0, to.address, 0, 0, priority, 0 });
        break;
    }
    case 'b':
        add(told, (struct rule){ AF_INET, to.length, FR_ACT_UNREACHABLE, 0, 0, to.address, 0, 0, FIRST, 0 });
        break;
    case 'r':
        for (u32 i = 0; i < resolver_count; i++)
            if (holds(&to, &resolvers[i])) { /* the name server is reached by the main table */
                reject(told, &to, RTM_DELROUTE);
                return;
            }
        reject(told, &to, RTM_NEWROUTE);
        break;
    case 'n':
        reject(told, &to, RTM_DELROUTE);
        break;
    default:
        fail("rule", told, -22);
    }
}

/* --- */

/* kernels before 4.17 ignore what they do not know of a rule: protocol and port */
static void check_kernel(void)
{
    static char names[6][65];
    const char *release = names[2];
    u32 major, minor;
    if (CALL(SYS_uname, names, 0, 0) || !number(&release, 1000, &major) || *release++ != '.'
        || !number(&release, 1000, &minor) || major * 1000 + minor < 4017)
        fail("kernel", "before 4.17", -38);
}

static void open_netlink(void)
{
    netlink = CALL(SYS_socket, AF_NETLINK, SOCK_RAW, 0);
    if (netlink < 0)
        fail("socket", "netlink", netlink);
}

/* The rule that `close` and `lend` set. The engine asks on from its own namespace where its name server is on its
 * loopback, so that without this rule names would be resolved, and data carried out, with no interface at all. */
static struct rule engine_resolver(u8 action)
{
    static const u8 address[4] = { 127, 0, 0, 11 };
    return (struct rule){ AF_INET, 32, action, 0, 0, address, 0, 0, FIRST, 0 };
}

static void reach_engine_resolver(int reachable)
{
    long result;
    if (!reachable) {
        add("close", engine_resolver(FR_ACT_UNREACHABLE));
        return;
    }
    result = rule(RTM_DELRULE, 0, engine_resolver(0));
    if (result && result != -ENOENT)
        fail("removal", "of close", result);
}

static void set(char **told)
{
    static const u8 multicast[16] = { 0xff };
    check_kernel();
    open_netlink();
    xfrm = CALL(SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_XFRM);
    if (xfrm < 0)
        fail("socket", "xfrm", xfrm);
    /* the rules of an earlier call, which may have been others */
    long rules = netlink, flushed;
    begin_message(XFRM_MSG_FLUSHPOLICY, 0);
    netlink = xfrm;
    flushed = ask();
    netlink = rules;
    if (flushed && flushed != -ESRCH) /* there is none */
        fail("removal", "of policies", flushed);
    for (u32 priority = LISTED; priority < LISTED + MAX_LISTED; priority++) {
        long result;
        do
            result = rule(RTM_DELRULE, 0, (struct rule){ AF_INET, 0, 0, 0, 0, 0, 0, 0, priority, 0 });
        while (!result);
        if (result != -ENOENT)
            fail("removal", "of rules", result);
    }
    reach_engine_resolver(1);
    /* what leads nowhere stands before the table of local addresses, which holds those for broadcast and multicast */
    for (u8 family = AF_INET; family; family = family == AF_INET ? AF_INET6 : 0) {
        struct rule local = { family, 0, FR_ACT_TO_TBL, TABLE_LOCAL, 0, 0, 0, 0, LOCAL, 0 };
        long result = rule(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, local);
        if (family == AF_INET6 && result == -EAFNOSUPPORT)
            break;
        if (result && result != -EEXIST)
            fail("rule", "local", result);
        local.priority = 0;
        result = rule(RTM_DELRULE, 0, local);
        if (result && result != -ENOENT)
            fail("removal", "local", result);
        if (family == AF_INET6) {
            add("IPv6", (struct rule){ AF_INET6, 8, FR_ACT_UNREACHABLE, 0, 0, multicast, 0, 0, FIRST, 0 });
            add("IPv6", (struct rule){ AF_INET6, 0, FR_ACT_UNREACHABLE, 0, 0, 0, 0, 0, LISTED, 0 });
        }
    }
    for (u32 priority = LISTED; *told; told++)
        if (priority < LISTED + MAX_LISTED)
            add_listed(*told, priority++);
        else
            fail("rules", "too many", -7);
    CALL(SYS_close, netlink, 0, 0);
    CALL(SYS_close, xfrm, 0, 0);
}

static void lend(void)
{
    char asked;
    while (CALL(SYS_read, 0, &asked, 1) == 1) {
        reach_engine_resolver(asked == 'o');
        say("ready");
        end_line();
    }
}

__attribute__((used)) void begin(long *stack)
{
    char **arguments = (char **)(stack + 1);
    char mode = stack[0] > 1 ? arguments[1][0] : 0;
    struct { u32 version; int pid; } header = { 0x20080522, 0 };
    static u32 nothing[6];
    long result;
    if (mode == 'r')
        read_resolvers();
    else if (mode == 'h' || mode == 'l' || mode == 'o')
        set(arguments + 2);
    else if (mode != 'c')
        fail("mode", "unknown", -22);
    if (mode == 'c' || mode == 'l') {
        open_netlink();
        reach_engine_resolver(0);
    }
    if (mode != 'l' && (result = CALL(SYS_capset, &header, nothing, 0)))
        fail("capset", "", result);
    say("ready");
    for (u32 i = 0; i < resolver_count; i++) {
        say(" ");
        for (int part = 0; part < 4; part++) {
            say(part ? "." : "");
            say_number(resolvers[i].address[part]);
        }
    }
    end_line();
    if (mode == 'l') {
        lend();
        if ((result = CALL(SYS_capset, &header, nothing, 0)))
            fail("capset", "", result);
    } else if (mode != 'h')
        leave(0);
    CALL(SYS_close, 1, 0, 0);
    CALL(SYS_close, 2, 0, 0);
    for (;;)
        call(SYS_ppoll, 0, 0, 0, 0, 0, 0);
}
