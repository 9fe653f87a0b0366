/* Who may connect: addresses of both families, ranges and their edges, and
 * what is no list of ranges. */
#include "rendezvous/access.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "unit.h"

#define LENGTH_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct access *a;
static struct err e;

static void setup(void)
{
    ck_assert_int_eq(access_create(&a), 0);
}

static void teardown(void)
{
    access_free(a);
}

/* Of a number with maybe a scope behind it, "fe80::1%3". */
static const struct sockaddr *address(const char *text)
{
    static struct sockaddr_storage ss;
    struct sockaddr_in *sin = (struct sockaddr_in *)&ss;
    struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&ss;
    char copy[64];
    char *scope;

    memset(&ss, 0, sizeof(ss));
    snprintf(copy, sizeof(copy), "%s", text);
    scope = strchr(copy, '%');
    if (scope != NULL)
        *scope++ = '\0';
    if (inet_pton(AF_INET, copy, &sin->sin_addr) == 1) {
        sin->sin_family = AF_INET;
        sin->sin_port = htons(4711);
    } else {
        ck_assert_int_eq(inet_pton(AF_INET6, copy, &sin6->sin6_addr), 1);
        sin6->sin6_family = AF_INET6;
        sin6->sin6_port = htons(4711);
        sin6->sin6_scope_id = scope != NULL ? (uint32_t)atoi(scope) : 0;
    }
    return (struct sockaddr *)&ss;
}

static bool is_client(const char *text)
{
    return access_is_client_allowed(a, address(text));
}

static bool is_local(const char *text)
{
    return access_is_local_allowed(a, address(text));
}

static void allow(const char *list)
{
    ck_assert_int_eq(access_check_cidrs(list, NULL), 0);
    ck_assert_msg(access_allow_cidrs(a, list, &e) == 0, "%s", e.msg);
}

/* --- Loopback ------------------------------------------------------------- */

static const struct {
    const char *address;
    bool is_loopback;
} loopbacks[] = {
    {"127.0.0.1", true},
    {"127.0.1.1", true},
    {"127.255.255.255", true},
    {"::1", true},
    {"::ffff:127.0.0.1", true},
    {"::ffff:127.9.9.9", true},
    {"126.255.255.255", false},
    {"128.0.0.1", false},
    {"10.0.0.1", false},
    {"::2", false},
    {"::", false},
    {"::127.0.0.1", false},
    {"0.0.0.1", false},
    {"::ffff:0.0.0.1", false},
    {"::ffff:128.0.0.1", false},
    {"fe80::1", false},
};

START_TEST(loopback_is_always_allowed_and_nothing_else_at_first)
{
    ck_assert_int_eq(
        is_client(loopbacks[_i].address), loopbacks[_i].is_loopback);
    ck_assert(is_local(loopbacks[_i].address)); /* any */
    ck_assert_int_eq(access_limit_local(a, address("192.0.2.1")), 0);
    ck_assert_int_eq(
        is_local(loopbacks[_i].address), loopbacks[_i].is_loopback);
    access_clear_addresses(a);
    ck_assert_int_eq(
        is_client(loopbacks[_i].address), loopbacks[_i].is_loopback);
}
END_TEST

/* --- Local addresses ------------------------------------------------------ */

START_TEST(connections_come_in_at_the_endpoints_addresses)
{
    ck_assert_int_eq(access_limit_local(a, address("192.0.2.1")), 0);
    ck_assert_int_eq(access_limit_local(a, address("192.0.2.1")), 0);
    ck_assert_int_eq(access_limit_local(a, address("2001:db8::1")), 0);
    ck_assert_int_eq(access_limit_local(a, address("fe80::1%2")), 0);
    ck_assert(is_local("192.0.2.1"));
    ck_assert(is_local("::ffff:192.0.2.1"));
    ck_assert(is_local("2001:db8::1"));
    ck_assert(is_local("fe80::1"));
    ck_assert(is_local("fe80::1%3"));
    ck_assert(!is_local("192.0.2.2"));
    ck_assert(!is_local("::192.0.2.1"));
    ck_assert(!is_local("2001:db8::2"));
    /* Where a connection comes in says nothing about where it is from. */
    ck_assert(!is_client("192.0.2.1"));
}
END_TEST

START_TEST(mapped_endpoint_is_an_ipv4_endpoint)
{
    ck_assert_int_eq(access_limit_local(a, address("::ffff:192.0.2.1")), 0);
    ck_assert(is_local("192.0.2.1"));
    ck_assert(!is_local("192.0.2.2"));
}
END_TEST

/* As on Debian, where a host's own name is 127.0.1.1: who limits to that
 * gets it. */
START_TEST(endpoint_at_loopback_is_loopback_alone)
{
    ck_assert_int_eq(access_limit_local(a, address("127.0.1.1")), 0);
    ck_assert(is_local("127.0.0.1"));
    ck_assert(is_local("::1"));
    ck_assert(!is_local("192.0.2.1"));
}
END_TEST

START_TEST(what_is_no_ip_address_is_nobody)
{
    const struct sockaddr_un un = {.sun_family = AF_UNIX};
    const struct sockaddr *sa = (const struct sockaddr *)&un;
    char text[ACCESS_TEXT_SIZE];

    ck_assert(access_is_local_allowed(a, sa)); /* any */
    ck_assert_int_eq(access_limit_local(a, sa), -EAFNOSUPPORT);
    ck_assert(access_is_local_allowed(a, sa)); /* nothing has changed */
    ck_assert_int_eq(access_limit_local(a, address("192.0.2.1")), 0);
    ck_assert(!access_is_local_allowed(a, sa));
    allow("0.0.0.0/0,::/0");
    ck_assert(!access_is_client_allowed(a, sa));
    access_text(sa, text);
    ck_assert_str_eq(text, "?");
}
END_TEST

/* --- Addresses one by one ------------------------------------------------- */

static const struct {
    const char *added, *is_in, *is_out;
} addresses[] = {
    {"10.1.2.3", "10.1.2.3", "10.1.2.2"},
    {"10.1.2.3", "::ffff:10.1.2.3", "::10.1.2.3"},
    {"::ffff:10.1.2.3", "10.1.2.3", "10.1.2.4"},
    {"::ffff:a01:203", "10.1.2.3", "10.1.2.4"},
    {"2001:db8::7", "2001:db8:0:0::7", "2001:db8::8"},
    {"fe80::1%eth0", "fe80::1%5", "fe80::2%5"},
    {"fe80::1", "fe80::1%5", "fe80::1:1"},
};

START_TEST(address_lets_itself_in_until_it_is_forgotten)
{
    ck_assert(!is_client(addresses[_i].is_in));
    ck_assert_int_eq(access_allow_address(a, addresses[_i].added), 0);
    ck_assert_int_eq(access_allow_address(a, addresses[_i].added), 0);
    ck_assert(is_client(addresses[_i].is_in));
    ck_assert(!is_client(addresses[_i].is_out));
    access_clear_addresses(a);
    ck_assert(!is_client(addresses[_i].is_in));
    ck_assert_int_eq(access_allow_address(a, addresses[_i].added), 0);
    ck_assert(is_client(addresses[_i].is_in));
}
END_TEST

static const char *const no_addresses[] = {
    "",
    "node1",
    "localhost",
    "10.1.2",
    "10.1.2.3.4",
    "10.1.2.256",
    "10.1.2.3/32",
    "10.1.2.3 ",
    "10.1.2.3%eth0",
    "10.1.2.3:29500",
    "[::1]",
    "fe80::1::2",
    "%eth0",
    ":",
    "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000",
};

START_TEST(what_is_no_number_is_no_address)
{
    ck_assert_int_eq(access_allow_address(a, no_addresses[_i]), -EINVAL);
    ck_assert(!is_client("10.1.2.3"));
    ck_assert(!is_client("::"));
}
END_TEST

START_TEST(ten_thousands_of_addresses)
{
    char text[40];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 60000; i++) {
            snprintf(
                text, sizeof(text), "10.%d.%d.%d", round, i / 256, i % 256);
            ck_assert_int_eq(access_allow_address(a, text), 0);
        }
        for (int i = 0; i < 60000; i++) {
            snprintf(
                text, sizeof(text), "10.%d.%d.%d", round, i / 256, i % 256);
            ck_assert(is_client(text));
            snprintf(
                text, sizeof(text), "10.%d.%d.%d", 1 - round, i / 256, i % 256);
            ck_assert(!is_client(text));
        }
        access_clear_addresses(a);
    }
}
END_TEST

/* --- Ranges ----------------------------------------------------------------
 */

static const struct {
    const char *list, *is_in, *is_out;
} ranges[] = {
    {"10.0.0.0/8", "10.0.0.0", "9.255.255.255"},
    {"10.0.0.0/8", "10.255.255.255", "11.0.0.0"},
    {"10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"},
    {"10.0.0.0/8", "10.0.0.1", "0a00::"}, /* the same bits */
    {"10.99.99.99/8", "10.1.2.3", "11.99.99.99"}, /* bits of a host */
    {"10.128.0.0/9", "10.128.0.0", "10.127.255.255"},
    {"10.0.0.0/15", "10.1.255.255", "10.2.0.0"},
    {"192.0.2.4/30", "192.0.2.7", "192.0.2.8"},
    {"192.0.2.6/31", "192.0.2.7", "192.0.2.5"},
    {"192.0.2.7/32", "192.0.2.7", "192.0.2.6"},
    {"192.0.2.7", "192.0.2.7", "192.0.2.6"},
    {"128.0.0.0/1", "255.255.255.255", "126.255.255.255"},
    {"0.0.0.0/0", "255.255.255.255", "2001:db8::1"},
    {"0.0.0.0/0", "::ffff:255.255.255.255", "::"},
    {"1.2.3.4/0", "0.0.0.0", "::2"},
    {"::/0", "ffff::", "10.1.2.3"},
    {"::/0", "::", "::ffff:10.1.2.3"},
    {"::/80", "::fffe:10.1.2.3", "::ffff:10.1.2.3"},
    {"8000::/1", "ffff::1", "7fff::1"},
    {"fd00::/8", "fdff:ffff::1", "fc00::1"},
    {"fd00::/8", "fd00::", "fe00::"},
    {"2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"},
    {"2001:db8::6/127", "2001:db8::7", "2001:db8::5"},
    {"2001:db8::7/128", "2001:db8::7", "2001:db8::6"},
    {"2001:db8::7", "2001:db8::7", "2001:db8::6"},
    {"fe80::/10", "fe80::1%7", "fec0::1"},
    {"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
    {"::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"},
    {"::ffff:0:0/96", "1.2.3.4", "::2"},
    {"10.0.0.0/8,fd00::/8", "fd00::1", "192.0.2.7"},
    {"fd00::/8,10.0.0.0/8,192.0.2.7", "192.0.2.7", "192.0.2.8"},
    {" 10.0.0.0/8 ,\tfd00::/8\t", "10.0.0.1", "192.0.2.8"},
    {" 10.0.0.0/8 ,\tfd00::/8\t", "fd00::1", "192.0.2.8"},
    {"10.0.0.0/08", "10.0.0.1", "11.0.0.1"},
};

START_TEST(range_lets_in_what_it_holds)
{
    ck_assert(!is_client(ranges[_i].is_in));
    allow(ranges[_i].list);
    ck_assert(is_client(ranges[_i].is_in));
    ck_assert(!is_client(ranges[_i].is_out));
    ck_assert(is_client("127.0.0.1"));
    access_clear_addresses(a); /* they are not about ranges */
    ck_assert(is_client(ranges[_i].is_in));
}
END_TEST

START_TEST(lists_add_up)
{
    allow("10.0.0.0/8");
    allow("fd00::/8,192.0.2.7");
    ck_assert(is_client("10.0.0.1"));
    ck_assert(is_client("fd00::1"));
    ck_assert(is_client("192.0.2.7"));
    ck_assert(!is_client("192.0.2.8"));
}
END_TEST

#define NUMBERS "expected addresses in numbers"
#define BITS_32 "expected a number of bits from 0 to 32 after the slash"
#define BITS_128 "expected a number of bits from 0 to 128 after the slash"
#define BITS_MAPPED "expected a number of bits from 96 to 128 after the slash"

static const struct {
    const char *list, *given, *expected;
} no_lists[] = {
    {"", "''", NUMBERS},
    {" ", "''", NUMBERS},
    {",", "''", NUMBERS},
    {"10.0.0.0/8,", "''", NUMBERS},
    {",10.0.0.0/8", "''", NUMBERS},
    {"10.0.0.0/8,,fd00::/8", "''", NUMBERS},
    {"node1", "'node1'", NUMBERS},
    {"10.0.0.0/8,node1,fd00::/8", "'node1'", NUMBERS},
    {"10.0.0.0/8;fd00::/8", "'10.0.0.0/8;fd00::/8'", BITS_32},
    {"10.0.0/8", "'10.0.0/8'", NUMBERS},
    {"10/8", "'10/8'", NUMBERS},
    {"256.0.0.0/8", "'256.0.0.0/8'", NUMBERS},
    {"/8", "'/8'", NUMBERS},
    {"fd00::/8 10.0.0.0/8", "'fd00::/8 10.0.0.0/8'", BITS_128},
    {"10.0.0.0 /8", "'10.0.0.0 /8'", NUMBERS},
    {"[fd00::]/8", "'[fd00::]/8'", NUMBERS},
    {"fe80::1%eth0", "'fe80::1%eth0'", NUMBERS},
    {"fd00:::/8", "'fd00:::/8'", NUMBERS},
    {"10.0.0.0/", "'10.0.0.0/'", BITS_32},
    {"10.0.0.0/33", "'10.0.0.0/33'", BITS_32},
    {"10.0.0.0/128", "'10.0.0.0/128'", BITS_32},
    {"10.0.0.0/-1", "'10.0.0.0/-1'", BITS_32},
    {"10.0.0.0/+8", "'10.0.0.0/+8'", BITS_32},
    {"10.0.0.0/ 8", "'10.0.0.0/ 8'", BITS_32},
    {"10.0.0.0/8/8", "'10.0.0.0/8/8'", BITS_32},
    {"10.0.0.0/8x", "'10.0.0.0/8x'", BITS_32},
    {"10.0.0.0/4294967304", "'10.0.0.0/4294967304'", BITS_32},
    {"10.0.0.0/255.0.0.0", "'10.0.0.0/255.0.0.0'", BITS_32},
    {"fd00::/129", "'fd00::/129'", BITS_128},
    {"fd00::/", "'fd00::/'", BITS_128},
    {"::ffff:10.0.0.0/8", "'::ffff:10.0.0.0/8'", BITS_MAPPED},
    {"::ffff:10.0.0.0/95", "'::ffff:10.0.0.0/95'", BITS_MAPPED},
};

START_TEST(bad_list_is_told_and_changes_nothing)
{
    allow("192.0.2.7");
    ck_assert_int_eq(access_check_cidrs(no_lists[_i].list, NULL), -EINVAL);
    for (int i = 0; i < 2; i++) {
        memset(&e, 0, sizeof(e));
        ck_assert_int_eq(i == 0 ? access_check_cidrs(no_lists[_i].list, &e)
                                : access_allow_cidrs(a, no_lists[_i].list, &e),
            -EINVAL);
        ck_assert_int_eq(e.rc, -EINVAL);
        ck_assert_msg(
            strncmp(e.msg, no_lists[_i].given, strlen(no_lists[_i].given)) == 0,
            "%s: %s", no_lists[_i].list, e.msg);
        ck_assert_msg(strstr(e.msg, no_lists[_i].expected) != NULL, "%s: %s",
            no_lists[_i].list, e.msg);
    }
    ck_assert(!is_client("10.0.0.0"));
    ck_assert(!is_client("fd00::"));
    ck_assert(is_client("192.0.2.7"));
}
END_TEST

START_TEST(error_about_a_long_word_still_says_what_is_expected)
{
    char list[4096];

    memset(list, 'x', sizeof(list) - 1);
    list[sizeof(list) - 1] = '\0';
    ck_assert_int_eq(access_check_cidrs(list, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "fd00::/8"));
}
END_TEST

/* --- The rest --------------------------------------------------------------
 */

static const struct {
    const char *address, *text;
} texts[] = {
    {"10.1.2.3", "10.1.2.3"},
    {"::ffff:10.1.2.3", "10.1.2.3"},
    {"2001:db8:0:0:0:0:0:1", "2001:db8::1"},
    {"fe80::1%7", "fe80::1"},
    {"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
};

START_TEST(text_of_an_address_lets_it_in)
{
    char text[ACCESS_TEXT_SIZE];

    access_text(address(texts[_i].address), text);
    ck_assert_str_eq(text, texts[_i].text);
    ck_assert_int_eq(access_allow_address(a, text), 0);
    ck_assert(is_client(texts[_i].address));
}
END_TEST

START_TEST(free_takes_null)
{
    access_free(NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("access");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc,
        loopback_is_always_allowed_and_nothing_else_at_first, 0,
        (int)LENGTH_OF(loopbacks));
    tcase_add_test(tc, connections_come_in_at_the_endpoints_addresses);
    tcase_add_test(tc, mapped_endpoint_is_an_ipv4_endpoint);
    tcase_add_test(tc, endpoint_at_loopback_is_loopback_alone);
    tcase_add_test(tc, what_is_no_ip_address_is_nobody);
    tcase_add_loop_test(tc, address_lets_itself_in_until_it_is_forgotten, 0,
        (int)LENGTH_OF(addresses));
    tcase_add_loop_test(
        tc, what_is_no_number_is_no_address, 0, (int)LENGTH_OF(no_addresses));
    tcase_add_test(tc, ten_thousands_of_addresses);
    tcase_add_loop_test(
        tc, range_lets_in_what_it_holds, 0, (int)LENGTH_OF(ranges));
    tcase_add_test(tc, lists_add_up);
    tcase_add_loop_test(
        tc, bad_list_is_told_and_changes_nothing, 0, (int)LENGTH_OF(no_lists));
    tcase_add_test(tc, error_about_a_long_word_still_says_what_is_expected);
    tcase_add_loop_test(
        tc, text_of_an_address_lets_it_in, 0, (int)LENGTH_OF(texts));
    tcase_add_test(tc, free_takes_null);
    return unit_run("access", tc);
}
