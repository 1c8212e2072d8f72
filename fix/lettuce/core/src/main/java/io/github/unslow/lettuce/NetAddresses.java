package io.github.unslow.lettuce;

import io.netty.util.NetUtil;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;

/** Addresses in one way of writing: {@code ::1} and {@code 0:0:0:0:0:0:0:1} are the same. */
final class NetAddresses {

    private NetAddresses() {
    }

    /** Host and port of a resolved address, as CLUSTER NODES has it: without the scope that an IPv6 address may have. */
    static String of(InetSocketAddress address) {
        return normal(address.getAddress().getHostAddress().split("%", 2)[0]) + ":" + address.getPort();
    }

    /** An IPv6 address in its short form; anything else as it is. */
    static String normal(String host) {
        if (!NetUtil.isValidIpV6Address(host)) {
            return host;
        }
        try {
            return NetUtil.toAddressString(InetAddress.getByAddress(NetUtil.createByteArrayFromIpAddressString(host)));
        } catch (UnknownHostException e) {
            return host;
        }
    }

}
