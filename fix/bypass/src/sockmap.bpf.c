// Hands the bytes of one socket to another socket of the same machine, below TCP. This is the half of sockmap.rs that
// runs in the kernel: two maps and two programs. Run `make bpf` after every change; the object is committed beside this
// file.
//
// Both programs say "carry on" in every case: a connection that cannot be handed over keeps using TCP.

#include <stdbool.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// sys/socket.h has these, and would need the C library's headers.
#define AF_INET 2
#define AF_INET6 10

// SK_PASS for sk_msg, success for sockops.
#define CARRY_ON 1

// One end of a connection, as that end sees it. The cookie of the network namespace keeps containers with the same
// addresses apart. Addresses are in network order, and IPv4 is written as IPv6 writes it (::ffff:127.0.0.1), because a
// server that listens on :: sees its IPv4 clients so. Ports are plain numbers. There is no padding: the map hashes
// every byte.
struct socket {
    __u64 namespace;
    __u32 own[4];
    __u32 peer[4];
    __u32 own_port;
    __u32 peer_port;
};
_Static_assert(sizeof(struct socket) == 48, "KEY_BYTES in sockmap.rs");

// Both ends of every connection that is handed over. The kernel removes a socket when it is closed, and a full map only
// means that further connections stay with TCP.
//
// Maps have sizes instead of types: with types, the kernel would have to accept this file's BTF as well.
struct {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 131072);
    __uint(key_size, sizeof(struct socket));
    __uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

// One bit a port, set if connections to it are handed over. sockmap.rs fills it in before it attaches the programs.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, 65536 / 8);
} ports SEC(".maps");

static __always_inline void write_ip4(__u32 to[4], __u32 address)
{
    to[0] = 0;
    to[1] = 0;
    to[2] = bpf_htonl(0xffff);
    to[3] = address;
}

// Volatile, because the verifier only allows reads of 32 bits here, and clang likes to join two of them.
static __always_inline void write_ip6(__u32 to[4], const volatile __u32 address[4])
{
    to[0] = address[0];
    to[1] = address[1];
    to[2] = address[2];
    to[3] = address[3];
}

static __always_inline bool same_address(const __u32 a[4], const __u32 b[4])
{
    return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

static __always_inline bool has_bit(const __u8 *bits, __u16 port)
{
    return bits[port / 8] & 1 << port % 8;
}

// Puts a socket into the map once its handshake is done. A sockops program, because that one is attached to a cgroup:
// at the root it sees the connections of every process, in every network namespace, without a restart.
SEC("sockops")
int add_socket(struct bpf_sock_ops *context)
{
    if (context->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && context->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        return CARRY_ON;
    struct socket socket;
    switch (context->family) {
    case AF_INET:
        write_ip4(socket.own, context->local_ip4);
        write_ip4(socket.peer, context->remote_ip4);
        break;
    case AF_INET6:
        write_ip6(socket.own, context->local_ip6);
        write_ip6(socket.peer, context->remote_ip6);
        break;
    default:
        return CARRY_ON;
    }
    // Within this machine both ends have the same address.
    if (!same_address(socket.own, socket.peer))
        return CARRY_ON;
    socket.own_port = context->local_port;
    socket.peer_port = bpf_ntohl(context->remote_port);
    // The server's own port is the chosen one, the client's peer's.
    __u32 first = 0;
    const __u8 *chosen = bpf_map_lookup_elem(&ports, &first);
    if (!chosen || (!has_bit(chosen, socket.own_port) && !has_bit(chosen, socket.peer_port)))
        return CARRY_ON;
    socket.namespace = bpf_get_netns_cookie(context);
    bpf_sock_hash_update(context, &sockets, &socket, BPF_ANY);
    return CARRY_ON;
}

// Hands a message to the socket at the other end. A sk_msg program, because that one is attached to the map and runs
// whenever a socket in it sends: before TCP has cut the message into segments. The other end is in the map as this one
// with its two addresses swapped. BPF_F_INGRESS lets it receive the message; without the flag it would send it.
SEC("sk_msg")
int redirect_bytes(struct sk_msg_md *context)
{
    struct socket receiver;
    switch (context->family) {
    case AF_INET:
        write_ip4(receiver.own, context->remote_ip4);
        write_ip4(receiver.peer, context->local_ip4);
        break;
    case AF_INET6:
        write_ip6(receiver.own, context->remote_ip6);
        write_ip6(receiver.peer, context->local_ip6);
        break;
    default:
        return CARRY_ON;
    }
    receiver.own_port = bpf_ntohl(context->remote_port);
    receiver.peer_port = context->local_port;
    receiver.namespace = bpf_get_netns_cookie(context);
    // It answers SK_DROP if the receiver is not in the map. That answer is ignored: the message then goes over TCP.
    bpf_msg_redirect_hash(context, &sockets, &receiver, BPF_F_INGRESS);
    return CARRY_ON;
}

char _license[] SEC("license") = "GPL";
