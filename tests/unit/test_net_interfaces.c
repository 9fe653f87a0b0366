/* Which interfaces NCCL_SOCKET_IFNAME allows, and the list of those there are.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/net_interfaces.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a[0])))

static const struct {
    const char *names;
    const char *interface;
    bool want;
} rules[] = {
    {NULL, "eth0", true},
    {"", "eth0", true},
    {"x", "eth0", true},
    {"^", "eth0", true},
    {"eth", "eth0", true},
    {"eth0", "eth0", true},
    {"eth0", "eth01", true},
    {"eth01", "eth0", false},
    {"ib,eth", "eth0", true},
    {"ib,eth", "wlan0", false},
    {"ib,,eth", "eth0", true},
    {",eth", "eth0", true},
    {",,", "eth0", true},
    {"=", "eth0", true},
    {"=,", "eth0", true},
    {"=eth", "eth0", false},
    {"=eth0", "eth0", true},
    {"=eth0", "eth01", false},
    {"=ib0,eth0", "eth0", true},
    {"=ib0,eth0", "eth01", false},
    {"^eth", "eth0", false},
    {"^eth", "lo", true},
    {"^docker,lo", "lo", false},
    {"^docker,lo", "eth0", true},
    {"^,", "eth0", false},
    {"^=lo", "lo", false},
    {"^=lo", "lo0", true},
    {"^=", "lo0", false},
    {"=^lo", "lo", false},
    {"eth0:1", "eth0", true},
    {"eth0:1,lo:2", "lo", true},
    {"=eth0:1", "eth0", true},
    {":1,lo", "eth0", false},
    {" eth0", "eth0", false},
    {"ETH", "eth0", false},
    {"nosuch", "eth0", false},
};

START_TEST(names_are_read_as_nccl_does)
{
    ck_assert_msg(net_interfaces_allows(rules[_i].names, rules[_i].interface) ==
                      rules[_i].want,
        "\"%s\" and %s", rules[_i].names, rules[_i].interface);
}
END_TEST

/* --- A machine ------------------------------------------------------------ */

#define ADDRESSES_MAX 8

static struct ifaddrs machine[ADDRESSES_MAX];
static struct sockaddr_storage addresses[ADDRESSES_MAX];
static int naddresses;
static char text[512];

/* address NULL: an interface that has none. */
static void add(const char *name, const char *address, unsigned flags)
{
    struct ifaddrs *at = &machine[naddresses];
    struct sockaddr_in *v4 = (struct sockaddr_in *)&addresses[naddresses];
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&addresses[naddresses];

    *at = (struct ifaddrs){.ifa_name = (char *)name, .ifa_flags = flags};
    if (naddresses > 0)
        at[-1].ifa_next = at;
    naddresses++;
    if (address == NULL)
        return;
    at->ifa_addr = (struct sockaddr *)v4;
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        return;
    }
    v6->sin6_family = AF_INET6;
    ck_assert_int_eq(inet_pton(AF_INET6, address, &v6->sin6_addr), 1);
}

#define UP (IFF_UP | IFF_RUNNING)

static void set_up(void)
{
    naddresses = 0;
    memset(addresses, 0, sizeof(addresses));
    add("lo", NULL, UP);
    add("lo", "127.0.0.1", UP);
    add("eth0", "192.0.2.7", UP);
    add("eth1", "192.0.2.9", IFF_UP);
    add("lo", "::1", UP);
    add("eth0", "2001:db8::7", UP);
    add("ib0", "2001:db8::8", UP);
}

#define ALL                                                                    \
    "lo (127.0.0.1), eth0 (192.0.2.7), eth1 (192.0.2.9, not running), "        \
    "ib0 (2001:db8::8)"

static const struct {
    const char *names;
    const char *family;
    bool want;
    const char *list;
} machines[] = {
    {NULL, NULL, true, ALL},
    {"eth", NULL, true, ALL},
    {"nosuch", NULL, false, ALL},
    {"eth1", NULL, false, ALL},
    {"^lo,eth,ib", NULL, false, ALL},
    {"lo", "AF_INET", true,
        "lo (127.0.0.1), eth0 (192.0.2.7), eth1 (192.0.2.9, not running)"},
    {"lo", "AF_INET6", false, "eth0 (2001:db8::7), ib0 (2001:db8::8)"},
    {"ib", "AF_INET", false,
        "lo (127.0.0.1), eth0 (192.0.2.7), eth1 (192.0.2.9, not running)"},
    {"ib", "AF_ANY", true, ALL},
};

START_TEST(interfaces_are_chosen_and_listed)
{
    ck_assert_int_eq(net_interfaces_choose(machine, machines[_i].names,
                         machines[_i].family, text, sizeof(text)),
        machines[_i].want);
    ck_assert_str_eq(text, machines[_i].list);
}
END_TEST

START_TEST(without_interfaces_there_are_none)
{
    ck_assert(!net_interfaces_choose(NULL, NULL, NULL, text, sizeof(text)));
    ck_assert_str_eq(text, "none");
}
END_TEST

/* Whatever the room: what is there of the list is whole entries. */
START_TEST(a_list_that_is_too_long_says_so)
{
    static const struct {
        size_t size;
        const char *want;
    } lists[] = {
        {sizeof(ALL), "lo (127.0.0.1), eth0 (192.0.2.7), "
                      "eth1 (192.0.2.9, not running), ..."},
        {sizeof(ALL) + 5, ALL},
        {40, "lo (127.0.0.1), eth0 (192.0.2.7), ..."},
        {20, "lo (127.0.0.1), ..."},
        {19, "..."},
    };

    for (int i = 0; i < COUNT(lists); i++) {
        memset(text, 'x', sizeof(text));
        ck_assert(
            net_interfaces_choose(machine, "ib", NULL, text, lists[i].size));
        ck_assert_str_eq(text, lists[i].want);
        ck_assert_int_eq(text[lists[i].size], 'x');
    }
}
END_TEST

START_TEST(this_machine_has_a_loopback_interface)
{
    ck_assert_int_eq(net_interfaces_check("=lo", NULL, text, sizeof(text)), 1);
    ck_assert_ptr_nonnull(strstr(text, "lo (127."));
    ck_assert_int_eq(
        net_interfaces_check("=no-such", NULL, text, sizeof(text)), 0);
    ck_assert_ptr_nonnull(strstr(text, "lo (127."));
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("net_interfaces");

    tcase_add_checked_fixture(t, set_up, NULL);
    tcase_add_loop_test(t, names_are_read_as_nccl_does, 0, COUNT(rules));
    tcase_add_loop_test(
        t, interfaces_are_chosen_and_listed, 0, COUNT(machines));
    tcase_add_test(t, without_interfaces_there_are_none);
    tcase_add_test(t, a_list_that_is_too_long_says_so);
    tcase_add_test(t, this_machine_has_a_loopback_interface);
    return unit_run("net_interfaces", t);
}
