/* See participant.h. */
#include "agent/participant.h"

#include <stdio.h>
#include <string.h>

void participant_init(struct participant *p,
    const struct participant_callbacks *callbacks, void *arg, uint64_t agent_id)
{
    *p = (struct participant){.callbacks = *callbacks,
        .arg = arg,
        .agent_id = agent_id,
        .place.round = -1,
        .peers_round = -1};
}

void participant_join(const struct participant *p, struct node_msg *join)
{
    join->agent_id = p->agent_id;
    join->part = p->place.round < 0 ? NODE_PART_NONE
                 : p->is_done       ? NODE_PART_DONE
                                    : NODE_PART_OPEN;
    join->round = p->place.round;
    join->round_id = p->place.round_id;
    join->restart_count = p->restart_count;
    join->round_restart_count = p->place.restart_count;
    join->group_rank = p->place.group_rank;
    join->group_world_size = p->place.group_world_size;
}

static bool is_in_round(const struct participant *p)
{
    return p->state == PARTICIPANT_RUNNING || p->state == PARTICIPANT_ENDED;
}

/* --- What is said ------------------------------------------------------- */

static void send_failure(struct participant *p, uint64_t now_ns)
{
    struct node_msg msg = p->failure;

    msg.kind = NODE_FAILED;
    msg.round = p->place.round;
    msg.ago_ns = now_ns > p->failure_ns ? now_ns - p->failure_ns : 0;
    p->callbacks.send(p->arg, &msg);
}

static void send_ended(struct participant *p)
{
    const struct node_msg msg = {
        .kind = NODE_ENDED, .round = p->place.round, .result = p->result};

    p->callbacks.send(p->arg, &msg);
}

static void send_leave(struct participant *p)
{
    struct node_msg msg = {.kind = NODE_LEAVE};

    memcpy(msg.text, p->leave_text, sizeof(msg.text));
    p->callbacks.send(p->arg, &msg);
}

static void finish(struct participant *p)
{
    if (p->state == PARTICIPANT_OVER)
        return;
    p->state = PARTICIPANT_OVER;
    p->callbacks.finish(p->arg);
}

/* The end of a node that has no workers, else of its workers first. */
static void finish_when_ended(struct participant *p, const struct node_msg *why)
{
    p->is_last = true;
    if (p->state == PARTICIPANT_RUNNING)
        p->callbacks.end_workers(p->arg, why);
    else
        finish(p);
}

/* What the coordinator has said may be news to another one. */
static void send_why(struct participant *p, uint64_t now_ns)
{
    struct node_msg msg = p->why;

    msg.ago_ns += now_ns > p->why_ns ? now_ns - p->why_ns : 0;
    p->callbacks.send(p->arg, &msg);
}

/* --- What is heard ------------------------------------------------------ */

/* Everything that the coordinator may not have heard, or another one did. That
 * one may give the number of a round that never began once more. */
static void on_welcome(
    struct participant *p, const struct node_msg *msg, uint64_t now_ns)
{
    if (p->place.round < 0 && msg->restart_count > p->restart_count)
        p->restart_count = msg->restart_count;
    p->peers_round = -1;
    if (is_in_round(p) && !p->is_done && p->has_failure)
        send_failure(p, now_ns);
    if (is_in_round(p) && !p->is_done && p->has_why &&
        p->why.kind == NODE_FAILED)
        send_why(p, now_ns);
    if (p->state == PARTICIPANT_ENDED && !p->is_done)
        send_ended(p);
    if (p->is_leaving)
        send_leave(p);
}

static void on_prepare(struct participant *p, const struct node_msg *msg)
{
    const struct node_msg ready = {.kind = NODE_READY, .round = msg->round};

    if (p->state == PARTICIPANT_RUNNING || p->state == PARTICIPANT_OVER)
        return;
    p->callbacks.close_store(p->arg);
    if (p->callbacks.open_store(p->arg) < 0)
        participant_give_up(p);
    else
        p->callbacks.send(p->arg, &ready);
}

static void on_round(struct participant *p, const struct node_msg *msg)
{
    if (p->state == PARTICIPANT_RUNNING || p->state == PARTICIPANT_OVER)
        return;
    p->place = *msg;
    p->restart_count = msg->restart_count;
    p->was_parked = p->is_done = p->has_failure = p->has_why = p->has_cause =
        false;
    p->state = PARTICIPANT_RUNNING;
    if (msg->group_rank != 0)
        p->callbacks.close_store(p->arg);
    p->callbacks.start(p->arg);
}

static void on_round_over(
    struct participant *p, const struct node_msg *msg, uint64_t now_ns)
{
    bool is_news = !p->has_why;

    /* A failure is remembered, for the next coordinator. */
    if (!is_in_round(p) || msg->round != p->place.round ||
        (p->has_why &&
            (p->why.kind == NODE_FAILED || msg->kind != NODE_FAILED)))
        return;
    p->has_why = true;
    p->why = *msg;
    p->why_ns = now_ns;
    if (is_news && p->state == PARTICIPANT_RUNNING)
        p->callbacks.end_workers(p->arg, msg);
}

/* Of a round that this node is not in: CLOSED follows, or another round. */
static void on_others_verdict(struct participant *p, const struct node_msg *msg)
{
    if (msg->restart_count > p->restart_count)
        p->restart_count = msg->restart_count;
    if (msg->next == NODE_NEXT_ROUND)
        return;
    p->cause = *msg;
    p->has_cause = true;
}

static void on_verdict(struct participant *p, const struct node_msg *msg)
{
    if (p->state == PARTICIPANT_WAITING ||
        (p->state == PARTICIPANT_ENDED && msg->round != p->place.round)) {
        on_others_verdict(p, msg);
        return;
    }
    if (!is_in_round(p) || msg->round != p->place.round || p->is_done)
        return;
    p->is_done = true;
    p->cause = *msg;
    p->has_cause = true;
    p->restart_count = msg->restart_count;
    p->callbacks.tell(p->arg, msg);
    if (msg->next == NODE_NEXT_ROUND)
        return;
    p->is_closed = true; /* CLOSED follows; that would change nothing */
    finish_when_ended(p, msg);
}

static void on_closed(struct participant *p, const struct node_msg *msg)
{
    if (p->state == PARTICIPANT_OVER || p->is_closed)
        return;
    p->is_closed = true;
    p->is_success = msg->result == 0;
    p->callbacks.tell(p->arg, msg);
    finish_when_ended(p, msg);
}

void participant_message(
    struct participant *p, const struct node_msg *msg, uint64_t now_ns)
{
    switch (msg->kind) {
    case NODE_WELCOME:
        on_welcome(p, msg, now_ns);
        break;
    case NODE_PEERS:
        p->callbacks.allow_peers(
            p->arg, msg->addrs, msg->round != p->peers_round);
        p->peers_round = msg->round;
        break;
    case NODE_PREPARE:
        on_prepare(p, msg);
        break;
    case NODE_ROUND:
        on_round(p, msg);
        break;
    case NODE_FAILED:
    case NODE_STOP:
        on_round_over(p, msg, now_ns);
        break;
    case NODE_VERDICT:
        on_verdict(p, msg);
        break;
    case NODE_CLOSED:
        on_closed(p, msg);
        break;
    case NODE_PARKED:
        p->was_parked = true;
        p->callbacks.tell(p->arg, msg);
        break;
    default:
        break;
    }
}

/* --- What happens here -------------------------------------------------- */

void participant_abandoned(struct participant *p)
{
    if (p->state == PARTICIPANT_OVER || p->is_last)
        return;
    /* Nobody is left to ask: its own part has been done. */
    if (p->state == PARTICIPANT_ENDED && !p->is_done)
        p->is_success = p->result == NODE_SUCCEEDED;
    finish_when_ended(p, NULL);
}

void participant_failed(struct participant *p, const struct node_msg *failure,
    uint64_t happened_ns, uint64_t now_ns)
{
    if (p->state != PARTICIPANT_RUNNING)
        return;
    p->has_failure = true;
    p->failure = *failure;
    p->failure_ns = happened_ns;
    send_failure(p, now_ns);
}

void participant_ended(struct participant *p, enum node_result result)
{
    if (p->state != PARTICIPANT_RUNNING)
        return;
    p->state = PARTICIPANT_ENDED;
    p->result = result;
    send_ended(p);
    if (p->is_last && !p->is_closed)
        p->is_success = result == NODE_SUCCEEDED;
    if (p->is_last || p->is_leaving)
        finish(p);
}

void participant_leave(struct participant *p, const char *why)
{
    if (p->is_leaving || p->state == PARTICIPANT_OVER)
        return;
    p->is_leaving = true;
    snprintf(p->leave_text, sizeof(p->leave_text), "%s", why);
    send_leave(p);
    if (p->state != PARTICIPANT_RUNNING)
        finish(p);
}

void participant_give_up(struct participant *p)
{
    p->is_last = true;
    finish(p);
}
