/*
 * The contract between the agent and its workers: the names of the
 * environment variables that the agent sets and libcollective reads. They
 * are torchrun's, so either side may be replaced by PyTorch's.
 */
#ifndef CRUN_RENDEZVOUS_WORKER_ENV_H
#define CRUN_RENDEZVOUS_WORKER_ENV_H

#define ENV_RANK "RANK"
#define ENV_LOCAL_RANK "LOCAL_RANK"
#define ENV_WORLD_SIZE "WORLD_SIZE"
#define ENV_LOCAL_WORLD_SIZE "LOCAL_WORLD_SIZE"
#define ENV_GROUP_RANK "GROUP_RANK"
#define ENV_GROUP_WORLD_SIZE "GROUP_WORLD_SIZE"
#define ENV_ROLE_NAME "ROLE_NAME"
#define ENV_ROLE_RANK "ROLE_RANK"
#define ENV_ROLE_WORLD_SIZE "ROLE_WORLD_SIZE"
#define ENV_MASTER_ADDR "MASTER_ADDR"
#define ENV_MASTER_PORT "MASTER_PORT"
#define ENV_RESTART_COUNT "TORCHELASTIC_RESTART_COUNT"
#define ENV_MAX_RESTARTS "TORCHELASTIC_MAX_RESTARTS"
#define ENV_RUN_ID "TORCHELASTIC_RUN_ID"
#define ENV_USE_AGENT_STORE "TORCHELASTIC_USE_AGENT_STORE"
#define ENV_ERROR_FILE "TORCHELASTIC_ERROR_FILE"
#define ENV_SIGNALS_TO_HANDLE "TORCHELASTIC_SIGNALS_TO_HANDLE"
#define ENV_NCCL_ASYNC_ERROR_HANDLING "TORCH_NCCL_ASYNC_ERROR_HANDLING"
#define ENV_OMP_NUM_THREADS "OMP_NUM_THREADS"
#define ENV_CUDA_VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"
/* crun's own: the name of the agent channel (agent_channel.h). */
#define ENV_AGENT "CRUN_AGENT"
/* Of several nodes: the address by which the others reach this one. */
#define ENV_NODE_ADDR "CRUN_NODE_ADDR"

#endif
