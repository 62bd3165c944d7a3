/*
 * The connector: carries TCP connections of a sandbox in frames over its standard input and output.
 *
 * The host starts it inside a sandbox and decides everything: which local port to connect to, on which local port to
 * listen. It reaches loopback addresses only. It ends at the end of its input. No libc, no allocation: one static
 * program for any image, whose memory is bounded by the tables below. Build it with `make connector`.
 *
 * A frame is a header of 8 bytes in little-endian order (kind, 0, stream, length of the payload) and its payload.
 * Streams below HALF are opened by the host (OPEN), the others by a connection to a port listened on (ACCEPTED).
 * Each direction of a stream may have WINDOW bytes that the receiver has not handed on; CREDIT returns some.
 * Each side sends CLOSE exactly once for a stream and nothing for it after that, except that the host may send a second
 * one that aborts; once both have, the number is free.
 */

#include "start.h"

enum { EAGAIN = 11, EINTR = 4, ECONNABORTED = 103, EINPROGRESS = 115, POLLIN = 1, POLLOUT = 4, POLLERR = 8, POLLHUP = 16, AF_INET = 2,
       AF_INET6 = 10, SOCK_STREAM = 1, SOCK_NONBLOCK = 2048, SOCK_CLOEXEC = 524288, SOL_SOCKET = 1, SO_REUSEADDR = 2,
       SO_ERROR = 4, SO_LINGER = 13, IPPROTO_TCP = 6, TCP_NODELAY = 1, MSG_NOSIGNAL = 0x4000, SHUT_WR = 1, F_GETFL = 3,
       F_SETFL = 4, F_SETPIPE_SZ = 1031, O_NONBLOCK = 2048, PR_SET_DUMPABLE = 4 };

struct pollfd { int fd; short events, revents; };

/* gcc calls this one for copies, even without a libc */
void *memcpy(void *target, const void *source, usize count)
{
    typedef usize __attribute__((may_alias, aligned(1))) word;
    u8 *to = target;
    const u8 *from = source;
    for (; count >= sizeof(word); count -= sizeof(word), to += sizeof(word), from += sizeof(word))
        *(word *)to = *(const word *)from;
    while (count--)
        *to++ = *from++;
    return target;
}

/* --- tables ------------------------------------------------------------------------------------------------------ */

enum { HELLO, OPEN, OPENED, LISTEN, LISTENING, UNLISTEN, ACCEPTED, DATA, END, CLOSE, CREDIT };
enum { VERSION = 1, HALF = 256, STREAMS = 2 * HALF, PORTS = 16, HEADER = 8, PIECE = 65536, WINDOW = 524288,
       OUTPUT = 4 * (HEADER + PIECE), CONTROL = HEADER + 4, PIPE = 1 << 20,
       ABORTED = 104 };

enum state { FREE, CONNECTING, RUNNING, CLOSING /* the host has closed: write what is left */,
             FINISHED /* the socket is closed; the host is still to be told, or to agree */ };

static struct stream {
    enum state state;
    int fd;
    u16 port;
    u8 on_ipv6;
    /* what the host is still to be told */
    u8 tells_opened, tells_end, tells_close;
    u8 has_ended;        /* the socket's input is at its end */
    u8 host_ended;       /* the host's input is at its end: shut down once the buffer is written */
    u8 has_shut;
    u8 host_closed;
    u32 write_error;     /* an errno: what the host sends is dropped, and what the socket still holds is read */
    u32 reason;          /* of our CLOSE: 0, or an errno */
    u32 credit;          /* bytes that the host takes */
    u32 owed;            /* bytes written to the socket since our last CREDIT */
    u32 start, length;   /* of what waits in the buffer */
} streams[STREAMS];
static u8 buffers[STREAMS][WINDOW];

static struct port { int fd; u16 number; u8 is_open, tells; u32 reason; } ports[PORTS];

static u8 input[4 * (HEADER + PIECE)];
static u32 input_length;
static u32 next_accepted;
static u8 accepts_later; /* this process or machine has no descriptor left: poll would tell of the waiting ones without end */
static u8 output[OUTPUT];
static u32 output_start, output_length;

/* --- output ------------------------------------------------------------------------------------------------------ */

static u32 room(void)
{
    if (output_start && OUTPUT - output_start - output_length < HEADER + PIECE) {
        memcpy(output, output + output_start, output_length); /* forwards, so that an overlap is fine */
        output_start = 0;
    }
    return OUTPUT - output_start - output_length;
}

static u8 *tail(void) { return output + output_start + output_length; }

static void put(u8 *to, u32 value, int bytes)
{
    for (; bytes--; value >>= 8)
        *to++ = (u8)value;
}

static u32 get(const u8 *from, int bytes)
{
    u32 value = 0;
    while (bytes--)
        value = value << 8 | from[bytes];
    return value;
}

/* The payload is behind the header already. */
static void header(u32 kind, u32 stream, u32 length)
{
    u8 *to = tail();
    put(to, kind, 2);
    put(to + 2, stream, 2);
    put(to + 4, length, 4);
    output_length += HEADER + length;
}

/* Returns 0 where there is no room now: the caller's mark stays, and the next turn tries again. */
static int tell(u32 kind, u32 stream, u32 value)
{
    if (room() < CONTROL)
        return 0;
    put(tail() + HEADER, value, 4);
    header(kind, stream, 4);
    return 1;
}

static void flush(void)
{
    while (output_length) {
        long count = CALL(SYS_write, 1, output + output_start, output_length);
        if (count == -EAGAIN || count == -EINTR)
            return;
        if (count < 0)
            leave(1);
        output_start += (u32)count;
        output_length -= (u32)count;
    }
    output_start = 0;
}

/* --- sockets ----------------------------------------------------------------------------------------------------- */

static int loopback(u16 port, int on_ipv6, u8 *address)
{
    for (int i = 0; i < 28; i++)
        address[i] = 0;
    put(address, on_ipv6 ? AF_INET6 : AF_INET, 2);
    address[2] = (u8)(port >> 8);
    address[3] = (u8)port;
    address[on_ipv6 ? 23 : 7] = 1; /* ::1, 127.0.0.1 */
    if (!on_ipv6)
        address[4] = 127;
    return on_ipv6 ? 28 : 16;
}

static int new_socket(int on_ipv6)
{
    return (int)CALL(SYS_socket, on_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static void set(int fd, int level, int option, int first, int second)
{
    int value[2] = {first, second};
    call(SYS_setsockopt, fd, level, option, (long)value, option == SO_LINGER && level == SOL_SOCKET ? 8 : 4, 0);
}

/* A reason other than 0 resets the connection. */
static void finish(struct stream *one, u32 reason)
{
    if (one->fd >= 0) {
        if (reason)
            set(one->fd, SOL_SOCKET, SO_LINGER, 1, 0);
        CALL(SYS_close, one->fd, 0, 0);
    }
    one->fd = -1;
    one->state = FINISHED;
    one->reason = reason;
    one->tells_close = 1;
    one->tells_opened = one->tells_end = 0;
    one->owed = one->length = 0;
}

static void begin_stream(struct stream *one, enum state state, u16 port, int fd)
{
    *one = (struct stream){.state = state, .fd = fd, .port = port, .credit = WINDOW};
}

/* Servers listen on ::1 alone where `localhost` is that to them (node), so it is tried where 127.0.0.1 refuses. */
static void try_connect(struct stream *one)
{
    u8 address[28];
    for (;;) {
        int size = loopback(one->port, one->on_ipv6, address);
        one->fd = new_socket(one->on_ipv6);
        long result = one->fd < 0 ? one->fd : CALL(SYS_connect, one->fd, address, size);
        if (result == -EINPROGRESS || result == 0)
            return;
        if (one->on_ipv6++) {
            finish(one, one->reason);
            return;
        }
        one->reason = (u32)-result; /* that of 127.0.0.1: a sandbox without IPv6 has another one for ::1 */
        if (one->fd >= 0)
            CALL(SYS_close, one->fd, 0, 0);
        one->fd = -1;
    }
}

static void connected(struct stream *one)
{
    int error = 0, size = sizeof error;
    call(SYS_getsockopt, one->fd, SOL_SOCKET, SO_ERROR, (long)&error, (long)&size, 0);
    if (!error) {
        set(one->fd, IPPROTO_TCP, TCP_NODELAY, 1, 0);
        one->state = RUNNING;
        one->tells_opened = 1;
    } else if (!one->on_ipv6) {
        CALL(SYS_close, one->fd, 0, 0);
        one->on_ipv6 = 1;
        one->reason = (u32)error;
        try_connect(one);
    } else {
        finish(one, one->reason);
    }
}

static void listen_on(struct port *one, u16 number)
{
    u8 address[28];
    int size = loopback(number, 0, address);
    long result = one->fd = new_socket(0);
    if (result >= 0) {
        set(one->fd, SOL_SOCKET, SO_REUSEADDR, 1, 0);
        result = CALL(SYS_bind, one->fd, address, size);
        if (result >= 0)
            result = CALL(SYS_listen, one->fd, HALF, 0);
        if (result < 0)
            CALL(SYS_close, one->fd, 0, 0);
    }
    one->number = number;
    one->is_open = result >= 0;
    one->tells = 1;
    one->reason = result < 0 ? (u32)-result : 0;
}

/* The one behind the last: a CLOSE of the host that crossed with ours finds its number free. */
static struct stream *free_stream(void)
{
    for (u32 i = 0; i < HALF; i++) {
        struct stream *one = &streams[HALF + (next_accepted + i) % HALF];
        if (one->state == FREE)
            return one;
    }
    return 0;
}

static void accept_one(struct port *one)
{
    struct stream *found = room() >= CONTROL ? free_stream() : 0;
    if (!found)
        return;
    long fd = call(SYS_accept4, one->fd, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0);
    if (fd < 0) {
        accepts_later = fd != -EAGAIN && fd != -EINTR && fd != -ECONNABORTED;
        return;
    }
    set((int)fd, IPPROTO_TCP, TCP_NODELAY, 1, 0);
    next_accepted = (u32)(found - streams) - HALF + 1;
    begin_stream(found, RUNNING, one->number, (int)fd);
    tell(ACCEPTED, (u32)(found - streams), one->number);
}

/* --- bytes between the host and a socket -------------------------------------------------------------------------- */

static void write_some(struct stream *one)
{
    u8 *buffer = buffers[one - streams];
    while (one->length) {
        u32 piece = WINDOW - one->start < one->length ? WINDOW - one->start : one->length;
        long count = call(SYS_sendto, one->fd, (long)(buffer + one->start), piece, MSG_NOSIGNAL, 0, 0);
        if (count == -EAGAIN || count == -EINTR)
            return;
        if (count < 0 && one->state == CLOSING) {
            finish(one, (u32)-count);
            return;
        }
        if (count < 0) { /* a server may answer and close before it has read all */
            one->write_error = (u32)-count;
            one->owed += one->length;
            one->length = 0;
            return;
        }
        one->start = (one->start + (u32)count) % WINDOW;
        one->length -= (u32)count;
        one->owed += (u32)count;
    }
    if (one->state == CLOSING) {
        finish(one, 0);
    } else if (one->host_ended && !one->has_shut && !one->write_error) {
        one->has_shut = 1;
        CALL(SYS_shutdown, one->fd, SHUT_WR, 0);
    }
}

static void read_some(struct stream *one)
{
    u32 most = room();
    if (most <= HEADER || !one->credit || one->has_ended || one->state != RUNNING || one->tells_opened)
        return;
    most = most - HEADER < PIECE ? most - HEADER : PIECE;
    most = most < one->credit ? most : one->credit;
    long count = CALL(SYS_read, one->fd, tail() + HEADER, most);
    if (count == -EAGAIN || count == -EINTR)
        return;
    if (count < 0) {
        finish(one, (u32)-count);
    } else if (count == 0) {
        one->has_ended = one->tells_end = 1;
    } else {
        one->credit -= (u32)count;
        header(DATA, (u32)(one - streams), (u32)count);
    }
}

/* Both sides have closed. The host may use the number again in the very next frame. */
static void release(struct stream *one)
{
    if (one->state == FINISHED && one->host_closed && !one->tells_close)
        one->state = FREE;
}

/* Send what the host is still to be told of a stream, as far as there is room. */
static void report(struct stream *one)
{
    u32 number = (u32)(one - streams);
    if (one->tells_opened && tell(OPENED, number, 0))
        one->tells_opened = 0;
    if (one->tells_end && !one->tells_opened && tell(END, number, 0))
        one->tells_end = 0;
    if (one->owed >= WINDOW / 4 && one->state == RUNNING && tell(CREDIT, number, one->owed))
        one->owed = 0;
    if (one->state == RUNNING && (one->has_shut || one->write_error) && one->has_ended && !one->tells_end)
        finish(one, one->write_error);
    if (one->tells_close && tell(CLOSE, number, one->reason))
        one->tells_close = 0;
    release(one);
}

/* --- frames of the host; one that it never sends ends the program -------------------------------------------------- */

static void take_data(struct stream *one, const u8 *from, u32 length)
{
    if (one->state == FINISHED)
        return; /* sent before it heard of the end */
    if (one->state != RUNNING || one->host_ended || length > WINDOW - one->length)
        leave(2);
    if (one->write_error) {
        one->owed += length;
        return;
    }
    if (!one->length)
        one->start = 0; /* so that a buffer has only as many pages as ever waited in it */
    u32 at = (one->start + one->length) % WINDOW, first = WINDOW - at < length ? WINDOW - at : length;
    u8 *buffer = buffers[one - streams];
    memcpy(buffer + at, from, first);
    memcpy(buffer, from + first, length - first);
    one->length += length;
    write_some(one);
}

static void take_close(struct stream *one, u32 reason)
{
    one->host_closed = 1;
    release(one);
    if (one->state == FINISHED || one->state == FREE)
        return;
    if (reason || one->state == CONNECTING) {
        finish(one, ABORTED);
    } else {
        one->state = CLOSING;
        one->tells_opened = one->tells_end = 0;
        write_some(one);
    }
}

static void take_port(u32 kind, u16 number)
{
    struct port *found = 0;
    for (int i = 0; i < PORTS; i++)
        if (ports[i].is_open ? ports[i].number == number : !found && !ports[i].tells)
            found = &ports[i];
    if (kind == LISTEN && found && !found->is_open)
        listen_on(found, number);
    else if (kind == UNLISTEN && found && found->is_open && found->number == number) {
        CALL(SYS_close, found->fd, 0, 0);
        found->is_open = 0;
    } else if (kind == LISTEN)
        leave(2);
}

static void take_frame(u32 kind, u32 number, const u8 *payload, u32 length)
{
    u32 value = length >= 4 ? get(payload, 4) : 0;
    if (kind == LISTEN || kind == UNLISTEN) {
        take_port(kind, (u16)value);
        return;
    }
    if (number >= STREAMS)
        leave(2);
    struct stream *one = &streams[number];
    if (kind == OPEN && one->state == FREE && number < HALF) {
        begin_stream(one, CONNECTING, (u16)value, -1);
        try_connect(one);
    } else if (one->state == FREE) {
        if (kind != CLOSE) /* one that aborts may cross with our own CLOSE */
            leave(2);
    } else if (kind == DATA) {
        take_data(one, payload, length);
    } else if (kind == CREDIT) {
        one->credit += value;
    } else if (kind == END) {
        one->host_ended = 1;
        if (one->state == RUNNING)
            write_some(one);
    } else if (kind == CLOSE) {
        take_close(one, value);
    } else {
        leave(2);
    }
}

static void take_input(void)
{
    long count = CALL(SYS_read, 0, input + input_length, sizeof input - input_length);
    if (count == -EAGAIN || count == -EINTR)
        return;
    if (count <= 0)
        leave(0);
    input_length += (u32)count;
    u32 at = 0;
    while (input_length - at >= HEADER) {
        u32 length = get(input + at + 4, 4);
        if (length > PIECE)
            leave(2);
        if (input_length - at < HEADER + length)
            break;
        take_frame(get(input + at, 2), get(input + at + 2, 2), input + at + HEADER, length);
        at += HEADER + length;
    }
    memcpy(input, input + at, input_length - at); /* forwards, so that an overlap is fine */
    input_length -= at;
}

/* --- the loop ---------------------------------------------------------------------------------------------------- */

static short wanted(const struct stream *one, int has_room)
{
    if (one->state == CONNECTING)
        return POLLOUT;
    if (one->state != RUNNING && one->state != CLOSING)
        return 0;
    short events = one->length ? POLLOUT : 0;
    if (one->state == RUNNING && has_room && one->credit && !one->has_ended)
        events |= POLLIN;
    return events;
}

/* Only open descriptors are in the list: poll refuses one that is longer than a process may have descriptors. */
static void turn(void)
{
    static struct pollfd polled[2 + PORTS + STREAMS];
    static u16 polled_streams[STREAMS];
    static u8 polled_ports[PORTS];
    static u32 first;
    long pause[2] = {0, 100000000}; /* 0.1 s */
    u32 listens = 0, count = 0, has_room = room() > HEADER + PIECE / 2;
    u32 accepts = !accepts_later && room() >= CONTROL && free_stream();
    polled[0] = (struct pollfd){0, POLLIN, 0};
    polled[1] = (struct pollfd){output_length ? 1 : -1, POLLOUT, 0};
    for (u32 i = 0; i < PORTS; i++)
        if (ports[i].is_open && accepts) {
            polled[2 + listens] = (struct pollfd){ports[i].fd, POLLIN, 0};
            polled_ports[listens++] = (u8)i;
        }
    for (u32 i = 0; i < STREAMS; i++) {
        u32 number = (first + i) % STREAMS; /* each turn begins with another one: nobody starves */
        short events = wanted(&streams[number], (int)has_room);
        if (!events)
            continue; /* poll reports POLLHUP whether asked for or not, so without end */
        polled[2 + listens + count] = (struct pollfd){streams[number].fd, events, 0};
        polled_streams[count++] = (u16)number;
    }
    first++;
    long ready = call(SYS_ppoll, (long)polled, 2 + listens + count, accepts_later ? (long)pause : 0, 0, 0, 0);
    accepts_later = 0;
    if (ready < 0 && ready != -EINTR)
        leave(1);
    if (ready < 0)
        return;
    for (u32 i = 0; i < count; i++) {
        struct stream *one = &streams[polled_streams[i]];
        short events = polled[2 + listens + i].revents;
        if (events && one->state == CONNECTING)
            connected(one);
        if (events & (POLLOUT | POLLERR | POLLHUP) && one->length)
            write_some(one);
        if (events & (POLLIN | POLLERR | POLLHUP))
            read_some(one);
    }
    if (polled[0].revents)
        take_input();
    for (u32 i = 0; i < listens; i++)
        if (polled[2 + i].revents && ports[polled_ports[i]].is_open)
            accept_one(&ports[polled_ports[i]]);
    for (u32 i = 0; i < PORTS; i++)
        if (ports[i].tells && tell(LISTENING, ports[i].number, ports[i].reason))
            ports[i].tells = 0;
    for (u32 i = 0; i < STREAMS; i++)
        if (streams[i].state != FREE)
            report(&streams[i]);
    flush();
}

/* At the start of the stack: the number of arguments. With any, only show that this machine can run the program. */
__attribute__((used, noreturn)) void begin(const long *stack)
{
    if (stack[0] > 1)
        leave(0);
    CALL(SYS_prctl, PR_SET_DUMPABLE, 0, 0); /* a process of the same user cannot trace it */
    for (int fd = 0; fd < 2; fd++) {
        CALL(SYS_fcntl, fd, F_SETFL, CALL(SYS_fcntl, fd, F_GETFL, 0) | O_NONBLOCK);
        CALL(SYS_fcntl, fd, F_SETPIPE_SZ, PIPE); /* where it may: fewer turns of those who copy */
    }
    tell(HELLO, 0, VERSION);
    flush();
    for (;;)
        turn();
}
