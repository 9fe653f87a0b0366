/* How many nodes, and where they and the workers meet. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/rdzv_options.h"
#include "tests/unit/command_line.h"

static struct rdzv_options r;

static void set_up(void)
{
    keep_logs();
}

static void tear_down(void)
{
    options_fini(&o);
}

static int read_line(const char *line)
{
    parse_line(line);
    return rdzv_options_read(&r, &o, &e);
}

static const struct {
    const char *line;
    const char *addr;
    int port;
    const char *run_id; /* NULL: a random one */
} good[] = {
    {"", "127.0.0.1", 0, NULL},
    {"--nnodes 1", "127.0.0.1", 0, NULL},
    {"--nnodes 1:1 --node_rank 0", "127.0.0.1", 0, NULL},
    {"--rdzv_id j", "127.0.0.1", 0, "j"},
    {"--master_addr localhost", "localhost", 0, NULL},
    {"--local_addr 10.0.0.1", "10.0.0.1", 0, NULL},
    {"--master_port 29513", "127.0.0.1", 29513, "none"},
    {"--master_port 0", "127.0.0.1", 0, "none"},
    {"--master_port 1 --master_addr h --local_addr l", "h", 1, "none"},
    {"--master_port 1 --local_addr l", "127.0.0.1", 1, "none"},
    {"--master_port 1 --rdzv_id j", "127.0.0.1", 1, "j"},
    {"--rdzv_endpoint h:7", "h", 7, "none"},
    {"--rdzv_endpoint h:7 --master_port 8 --master_addr x", "h", 7, "none"},
    {"--rdzv_endpoint [::1]:7", "::1", 7, "none"},
    {"--rdzv_endpoint [fe80::1%eth0]:7", "fe80::1%eth0", 7, "none"},
    {"--rdzv_endpoint a.b-c_d:0", "a.b-c_d", 0, "none"},
    {"--rdzv_endpoint= --rdzv_id=", "127.0.0.1", 0, NULL},
    {"--standalone", "127.0.0.1", 0, NULL},
    {"--standalone --nnodes 1:4", "127.0.0.1", 0, NULL},
    {"--standalone --master_port 5", "127.0.0.1", 5, NULL},
    {"--standalone --node_rank 3", "127.0.0.1", 0, NULL},
    {"--standalone --rdzv_backend etcd --rdzv_endpoint h:", "127.0.0.1", 0,
        NULL},
    {"--rdzv_backend c10d", "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --rdzv_id j", "127.0.0.1", 0, "j"},
    {"--rdzv_backend c10d --rdzv_endpoint localhost:0", "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --rdzv_endpoint h:29400", "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --rdzv_endpoint h", "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --rdzv_endpoint [::1]", "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --local_addr l --node_rank 3", "l", 0, NULL},
    {"--rdzv_backend c10d --rdzv_endpoint /a/b: --rdzv_conf store_type=file",
        "127.0.0.1", 0, NULL},
    {"--rdzv_backend c10d --rdzv_conf "
     "join_timeout=5,last_call_timeout=1,close_timeout=1,heartbeat_timeout=1,"
     "keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=60,"
     "is_host=TRUE,store_type=tcp",
        "127.0.0.1", 0, NULL},
    {"--rdzv_conf timeout=900,rank=0", "127.0.0.1", 0, NULL},
};

START_TEST(one_node)
{
    ck_assert_msg(read_line(good[_i].line) == 0, "%s", e.msg);
    ck_assert_str_eq(r.master_addr, good[_i].addr);
    ck_assert_int_eq(r.master_port, good[_i].port);
    ck_assert_pstr_eq(r.run_id, good[_i].run_id);
    ck_assert_int_eq(r.max_nodes, 1);
    ck_assert_str_eq(log_text, "");
}
END_TEST

static const struct {
    const char *line;
    const char *named[3]; /* what the error must name */
} bad[] = {
    {"--nnodes a", {"--nnodes='a'"}},
    {"--nnodes 1:2:3", {"--nnodes='1:2:3'", "MIN:MAX"}},
    {"--nnodes 2:1", {"--nnodes='2:1'"}},
    {"--nnodes 0", {"--nnodes='0'"}},
    {"--nnodes 0:1", {"--nnodes='0:1'"}},
    {"--nnodes -1", {"--nnodes='-1'"}},
    {"--nnodes 1:", {"--nnodes='1:'"}},
    {"--nnodes :1", {"--nnodes=':1'"}},
    {"--nnodes 1.5", {"--nnodes='1.5'"}},
    {"--nnodes 3000000000", {"--nnodes='3000000000'"}},
    {"--nnodes 1:99999999999999999999", {"--nnodes='1:9999"}},
    {"--nnodes 11111111111111111111111111111:1", {"--nnodes='1111"}},
    {"--nnodes 2 --rdzv_backend c10d",
        {"--nnodes='2'", "--rdzv_endpoint is needed"}},
    {"--nnodes 1:2 --rdzv_backend c10d --rdzv_conf store_type=file "
     "--rdzv_endpoint /f",
        {"store_type=file", "host and port"}},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint h "
     "--rdzv_conf keep_alive_max_attempt=0",
        {"keep_alive_max_attempt='0'", "at least 1"}},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint 0.0.0.0:1",
        {"0.0.0.0 is no address that other nodes can reach"}},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint [::]",
        {":: is no address that other nodes can reach"}},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint [fe80::1%v0]:1",
        {"fe80::1%v0 is a link-local address"}},
    {"--nnodes 2 --node_rank 2", {"--node_rank='2'", "0 to 1"}},
    {"--nnodes 2 --node_rank 29500", {"--node_rank='29500'", "0 to 1"}},
    {"--nnodes 2 --node_rank -1", {"--node_rank='-1'", "0 to 1"}},
    {"--node_rank 1", {"--node_rank='1'", "0 to 0", "--nnodes='1'"}},
    {"--nnodes 2 --master_port 0", {"port 0", "cannot know"}},
    {"--nnodes 2 --rdzv_endpoint h:0", {"port 0", "cannot know"}},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint localhost:0",
        {"port 0", "cannot know"}},
    {"--standalone --nnodes 2", {"--standalone", "--nnodes='2'"}},
    {"--rdzv_backend etcd", {"'etcd'", "use c10d"}},
    {"--rdzv_backend etcd-v2", {"'etcd-v2'", "use c10d"}},
    {"--rdzv_backend zeus", {"'zeus'", "static, c10d"}},
    {"--rdzv_endpoint h", {"'h'", "needs a port"}},
    {"--rdzv_endpoint h:", {"'h:'", "port"}},
    {"--rdzv_endpoint h:x", {"'h:x'", "port"}},
    {"--rdzv_endpoint h:65536", {"'h:65536'", "port"}},
    {"--rdzv_endpoint h:-1", {"'h:-1'", "port"}},
    {"--rdzv_endpoint :7", {"':7'", "HOST:PORT"}},
    {"--rdzv_endpoint ::1", {"'::1'", "brackets"}},
    {"--rdzv_endpoint fe80::1:7", {"brackets"}},
    {"--rdzv_endpoint [::1", {"'[::1'", "[ADDRESS]:PORT"}},
    {"--rdzv_endpoint [::1]7", {"'[::1]7'"}},
    {"--rdzv_endpoint []:7", {"'[]:7'"}},
    {"--rdzv_endpoint h/x:7", {"'h/x:7'"}},
    {"--rdzv_backend c10d --rdzv_endpoint h:x", {"'h:x'", "port"}},
    {"--rdzv_conf a=b,c", {"--rdzv_conf='a=b,c'", "'c' lacks a value"}},
    {"--rdzv_conf timeout=", {"'timeout' lacks a value"}},
    {"--rdzv_conf =5", {"'5' lacks a key"}},
    {"--rdzv_conf timeout=5,", {"lacks a"}},
    {"--rdzv_conf timeout=0", {"timeout='0'", "whole seconds"}},
    {"--rdzv_conf timeout=1.5", {"timeout='1.5'", "whole seconds"}},
    {"--rdzv_conf timeout=-1", {"timeout='-1'"}},
    {"--rdzv_backend c10d --rdzv_conf is_host=maybe",
        {"is_host='maybe'", "true or false"}},
    {"--rdzv_backend c10d --rdzv_conf store_type=nfs", {"tcp or file"}},
    {"--rdzv_conf backend=c10d", {"backend='c10d'", "option of its own"}},
    {"--rdzv_conf endpoint=h:1", {"endpoint="}},
    {"--rdzv_conf run_id=1", {"run_id="}},
    {"--rdzv_conf min_nodes=1", {"min_nodes="}},
    {"--rdzv_conf max_nodes=1", {"max_nodes="}},
    {"--rdzv_conf local_addr=h", {"local_addr="}},
};

START_TEST(mistake_is_named)
{
    ck_assert_int_eq(read_line(bad[_i].line), -EINVAL);
    for (int i = 0; i < 3 && bad[_i].named[i] != NULL; i++)
        ck_assert_msg(strstr(e.msg, bad[_i].named[i]) != NULL, "'%s' in '%s'",
            bad[_i].named[i], e.msg);
}
END_TEST

/* Several nodes: where they meet, who comes first, and for how long. */
static const struct {
    const char *line;
    const char *host;
    int port;
    int node_rank;
    int min;
    int times[4]; /* join, last call, keep-alive, attempts */
    int is_host;
} many[] = {
    {"--nnodes 2 --master_addr h", "h", 29500, 0, 2, {900, 30, 1, 5}, -1},
    {"--nnodes 1:3 --node_rank 0 --node-rank 2 --rdzv_endpoint h:7 "
     "--rdzv_conf timeout=20",
        "h", 7, 2, 3, {20, 30, 1, 5}, -1},
    {"--nnodes 1:3 --rdzv_backend c10d", "localhost", 29400, -1, 1,
        {600, 30, 1, 5}, -1},
    {"--nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint [::1] --node_rank 2 "
     "--rdzv_conf join_timeout=4,last_call_timeout=5,keep_alive_interval=6,"
     "keep_alive_max_attempt=7,is_host=Yes",
        "::1", 29400, 2, 2, {4, 5, 6, 7}, 1},
    {"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint h:9 --rdzv_conf "
     "is_host=0",
        "h", 9, -1, 2, {600, 30, 1, 5}, 0},
};

START_TEST(several_nodes_meet_at_the_endpoint)
{
    bool is_static = strstr(many[_i].line, "c10d") == NULL;

    ck_assert_msg(read_line(many[_i].line) == 0, "%s", e.msg);
    ck_assert_str_eq(r.endpoint_host, many[_i].host);
    ck_assert_int_eq(r.endpoint_port, many[_i].port);
    ck_assert_int_eq(r.is_static, is_static);
    ck_assert_int_eq(r.node_rank, many[_i].node_rank);
    ck_assert_int_eq(r.min_nodes, many[_i].min);
    ck_assert_int_eq(
        is_static ? r.timeout_s : r.join_timeout_s, many[_i].times[0]);
    ck_assert_int_eq(r.last_call_s, many[_i].times[1]);
    ck_assert_int_eq(r.keep_alive_s, many[_i].times[2]);
    ck_assert_int_eq(r.keep_alive_attempts, many[_i].times[3]);
    ck_assert_int_eq(r.is_host, many[_i].is_host);
    ck_assert_str_eq(r.run_id, "none");
}
END_TEST

static const struct {
    const char *line;
    const char *warning;
} odd[] = {
    {"--rdzv_conf nosuch=1,timeout=5", "unknown key 'nosuch' is ignored"},
    {"--rdzv_backend c10d --rdzv_conf timeout=900",
        "timeout has no effect with the backend c10d"},
    {"--rdzv_conf join_timeout=5",
        "join_timeout has no effect with the backend static"},
    {"--rdzv_backend c10d --master_addr h",
        "--master_addr has no effect with the backend c10d"},
    {"--rdzv_backend c10d --master_port 3",
        "--master_port has no effect with the backend c10d"},
};

START_TEST(what_is_odd_is_told)
{
    ck_assert_msg(read_line(odd[_i].line) == 0, "%s", e.msg);
    ck_assert_str_eq(r.master_addr, "127.0.0.1");
    ck_assert_int_eq(r.master_port, 0);
    ck_assert_msg(strstr(log_text, odd[_i].warning) != NULL, "%s", log_text);
}
END_TEST

/* An operator sets these for every job. */
START_TEST(variables_of_a_cluster_are_no_oddity)
{
    setenv("PET_MASTER_ADDR", "h", 1);
    setenv("PET_MASTER_PORT", "1", 1);
    ck_assert_int_eq(read_line("--rdzv_backend c10d"), 0);
    ck_assert_str_eq(log_text, "");
    options_fini(&o);
    setenv("PET_NNODES", "x", 1);
    ck_assert_int_eq(read_line(""), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "PET_NNODES='x'"));
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("rdzv_options");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, one_node, 0, LEN(good));
    tcase_add_loop_test(t, several_nodes_meet_at_the_endpoint, 0,
        (int)(sizeof(many) / sizeof(many[0])));
    tcase_add_loop_test(t, mistake_is_named, 0, LEN(bad));
    tcase_add_loop_test(t, what_is_odd_is_told, 0, LEN(odd));
    tcase_add_test(t, variables_of_a_cluster_are_no_oddity);
    return unit_run("rdzv_options", t);
}
