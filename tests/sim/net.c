/* Machines, processes, and the connections between them. See sim.h. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/* As in rendezvous/node_conn.c: frames that the other side has not read. */
#define QUEUE_MAX ((size_t)8 << 20)

/* TCP sends again what did not get through. */
#define RETRY_MIN_NS (200 * SIM_MS)
#define RETRY_MAX_NS (1000 * SIM_MS)

struct chunk {
    struct chunk *next;
    bool is_last; /* the end of the stream */
    size_t len;
    char bytes[];
};

/* --- Machines and processes --------------------------------------------- */

uint64_t machine_now(const struct sim *s, const struct machine *m)
{
    int64_t now = (int64_t)s->now_ns;

    return (uint64_t)(m->offset_ns + now + now * m->rate / 1000);
}

void machine_set_rate(struct sim *s, struct machine *m, int64_t rate)
{
    int64_t now = (int64_t)s->now_ns;

    m->offset_ns += now * m->rate / 1000 - now * rate / 1000;
    m->rate = rate;
}

/* When it will show that time, if its rate stays. */
static uint64_t when_it_shows(
    const struct sim *s, const struct machine *m, uint64_t local_ns)
{
    uint64_t now = machine_now(s, m);

    if (local_ns <= now)
        return s->now_ns;
    return s->now_ns + (local_ns - now) / (uint64_t)(1000 + m->rate) * 1000 +
           1000;
}

void process_init(struct process *p, struct machine *m)
{
    *p = (struct process){.machine = m, .is_alive = true};
    ring_init(&p->ends);
}

bool process_takes(
    struct sim *s, struct process *p, sim_event_fn *fn, void *obj, uint64_t arg)
{
    if (!p->is_alive)
        return false;
    if (s->now_ns < p->frozen_until_ns) {
        sim_at(s, p->frozen_until_ns, fn, obj, arg);
        return false;
    }
    return true;
}

/* --- Timers ------------------------------------------------------------- */

static void timer_event(struct sim *s, void *obj, uint64_t gen)
{
    struct sim_timer *t = obj;

    if (t->gen != gen || !process_takes(s, t->process, timer_event, t, gen))
        return;
    t->gen++;
    t->fn(t->arg);
}

void timer_set(struct sim *s, struct sim_timer *t, uint64_t local_ns)
{
    sim_at(s, when_it_shows(s, t->process->machine, local_ns), timer_event, t,
        ++t->gen);
}

void timer_stop(struct sim_timer *t)
{
    t->gen++;
}

/* --- Connections -------------------------------------------------------- */

uint64_t net_delay(
    struct sim *s, const struct machine *a, const struct machine *b)
{
    uint64_t base = a == b ? s->base_delay_ns / 10 : s->base_delay_ns;
    uint64_t most = base + a->delay_ns + b->delay_ns;

    return sim_between(s, base / 4, most);
}

bool net_is_open(const struct machine *a, const struct machine *b)
{
    return a->is_up && b->is_up && (a == b || (!a->is_apart && !b->is_apart));
}

static struct end *other_end(struct end *e)
{
    return e == &e->conn->ends[0] ? &e->conn->ends[1] : &e->conn->ends[0];
}

static uint64_t retry_ns(struct sim *s)
{
    return sim_between(s, RETRY_MIN_NS, RETRY_MAX_NS);
}

static void push_event(
    struct conn *c, uint64_t at_ns, sim_event_fn *fn, struct end *e)
{
    c->nrefs++;
    sim_at(c->sim, at_ns, fn, e, 0);
}

static void forget_chunks(struct end *e)
{
    struct chunk *next;

    for (struct chunk *c = e->first; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    e->first = e->last = NULL;
}

void conn_release(struct conn *c)
{
    if (c->nrefs == 0)
        conn_free(c);
}

void conn_free(struct conn *c)
{
    for (int i = 0; i < 2; i++) {
        forget_chunks(&c->ends[i]);
        buf_fini(&c->ends[i].out);
    }
    ring_remove(&c->link);
    free(c);
}

struct conn *conn_create(
    struct sim *s, struct process *client, struct process *server)
{
    struct process *const processes[] = {client, server};
    struct conn *c = calloc(1, sizeof(*c));

    if (c == NULL)
        abort();
    c->sim = s;
    ring_add_last(&s->conns, &c->link);
    for (int i = 0; i < 2; i++) {
        c->ends[i].conn = c;
        c->ends[i].process = processes[i];
        c->ends[i].is_open = c->ends[i].is_owned = true;
        c->nrefs++;
        buf_init(&c->ends[i].out, QUEUE_MAX);
        ring_add_last(&processes[i]->ends, &c->ends[i].link);
    }
    return c;
}

static void reset_event(struct sim *s, void *obj, uint64_t arg)
{
    struct end *e = obj;
    struct conn *c = e->conn;

    (void)arg;
    if (e->is_open && s->now_ns < e->process->frozen_until_ns)
        push_event(c, e->process->frozen_until_ns, reset_event, e);
    else if (e->is_open &&
             !net_is_open(e->process->machine, other_end(e)->process->machine))
        push_event(c, s->now_ns + retry_ns(s), reset_event, e);
    else if (e->is_open)
        e->ended(e->arg, "Connection reset by peer");
    c->nrefs--;
    conn_release(c);
}

static void read_chunk(struct end *e)
{
    struct chunk *chunk = e->first;
    size_t at = 0;

    e->first = chunk->next;
    if (e->first == NULL)
        e->last = NULL;
    if (chunk->is_last)
        e->ended(e->arg, "its connection was closed");
    while (e->is_open && at < chunk->len) {
        struct node_msg msg;
        int n = node_msg_decode(&msg, chunk->bytes + at, chunk->len - at);

        if (n <= 0) {
            check_fail(e->conn->sim, 0, "a frame cannot be decoded: %d", n);
            break;
        }
        at += (size_t)n;
        e->message(e->arg, &msg);
    }
    free(chunk);
}

/* The answer to what comes to a closed end; behind what was sent before. */
static void push_reset(struct end *e)
{
    struct sim *s = e->conn->sim;
    uint64_t at = s->now_ns + net_delay(s, e->process->machine,
                                  other_end(e)->process->machine);

    push_event(e->conn, at > e->last_ns ? at : e->last_ns, reset_event, e);
}

/* The oldest chunk, whichever this event was made for. */
static void arrive_event(struct sim *s, void *obj, uint64_t arg)
{
    struct end *e = obj;
    struct end *from = other_end(e);
    struct conn *c = e->conn;

    (void)arg;
    if (c->is_cut)
        forget_chunks(e);
    if (e->first == NULL)
        ;
    else if (!net_is_open(from->process->machine, e->process->machine))
        push_event(c, s->now_ns + retry_ns(s), arrive_event, e);
    else if (!e->is_open) {
        forget_chunks(e);
        if (from->is_open)
            push_reset(from);
    } else if (s->now_ns < e->process->frozen_until_ns) {
        push_event(c, e->process->frozen_until_ns, arrive_event, e);
    } else {
        read_chunk(e);
    }
    c->nrefs--;
    conn_release(c);
}

static void push_chunk(struct end *from, const void *bytes, size_t len)
{
    struct conn *c = from->conn;
    struct sim *s = c->sim;
    struct end *to = other_end(from);
    struct chunk *chunk = malloc(sizeof(*chunk) + len);
    uint64_t at =
        s->now_ns + net_delay(s, from->process->machine, to->process->machine);

    if (chunk == NULL)
        abort();
    chunk->next = NULL;
    chunk->is_last = bytes == NULL;
    chunk->len = len;
    if (len > 0)
        memcpy(chunk->bytes, bytes, len);
    if (to->last == NULL)
        to->first = chunk;
    else
        to->last->next = chunk;
    to->last = chunk;
    to->last_ns = at > to->last_ns ? at : to->last_ns;
    push_event(c, to->last_ns, arrive_event, to);
}

static void flush_out(struct end *e)
{
    if (e->out.len > 0)
        push_chunk(e, buf_bytes(&e->out), e->out.len);
    buf_consume(&e->out, e->out.len);
}

/* As with the poller: what a handler has sent goes out after it. */
static void flush_event(struct sim *s, void *obj, uint64_t arg)
{
    struct end *e = obj;
    struct conn *c = e->conn;

    (void)arg;
    if (e->is_open && s->now_ns < e->process->frozen_until_ns) {
        push_event(c, e->process->frozen_until_ns, flush_event, e);
    } else if (e->is_open) {
        e->is_flushing = false;
        if (e->is_stuck)
            e->ended(e->arg, "it does not read what it is sent");
        else
            flush_out(e);
    }
    c->nrefs--;
    conn_release(c);
}

void end_send(struct end *e, const struct node_msg *msg)
{
    if (!e->is_open)
        return;
    if (node_msg_encode(msg, &e->out) < 0)
        e->is_stuck = true;
    if (!e->is_flushing)
        push_event(e->conn, e->conn->sim->now_ns, flush_event, e);
    e->is_flushing = true;
}

static void forget_end(struct end *e)
{
    e->is_open = false;
    ring_remove(&e->link);
    buf_fini(&e->out);
}

void end_close(struct end *e)
{
    struct conn *c = e->conn;

    if (e->is_open) {
        flush_out(e);
        push_chunk(e, NULL, 0);
        forget_end(e);
    }
    if (!e->is_owned)
        return;
    e->is_owned = false;
    c->nrefs--;
    conn_release(c);
}

void process_end(struct sim *s, struct process *p)
{
    (void)s;
    p->is_alive = false;
    while (!ring_is_empty(&p->ends)) {
        struct end *e = RING_OBJECT(p->ends.next, struct end, link);

        push_chunk(e, NULL, 0); /* what it had not written is lost */
        forget_end(e);
    }
}

void process_vanish(struct sim *s, struct process *p)
{
    (void)s;
    p->is_alive = false;
    while (!ring_is_empty(&p->ends)) {
        struct end *e = RING_OBJECT(p->ends.next, struct end, link);

        forget_chunks(other_end(e)); /* what was on its way from here */
        forget_end(e);
    }
}

void conn_reset(struct conn *c)
{
    struct sim *s = c->sim;

    c->is_cut = true;
    for (int i = 0; i < 2; i++)
        if (c->ends[i].is_open && sim_chance(s, 70))
            push_event(c, s->now_ns + sim_between(s, 0, 300 * SIM_MS),
                reset_event, &c->ends[i]);
}
