#ifndef HEADRACE_ENGINE_ADAPTERS_C_API_HEADRACE_H_
#define HEADRACE_ENGINE_ADAPTERS_C_API_HEADRACE_H_

/* The C interface of Headrace, for bindings of other languages: publisher, receiver, coordinator, planner, and a
 * checkpoint directory as a publisher's memory. It is all that libheadrace.so exports. It stands on the C++ classes
 * whose headers hold the full contracts: loader/publisher.h, loader/receiver.h, loader/control/coordinator_service.h.
 *
 * Errors. A function that can fail returns NULL when it succeeded, and otherwise a JSON text that the caller frees by
 * hr_free; then nothing was stored through its result pointers:
 *   {"code": "uncovered", "kind": "input", "message": "...", "tensor": "q", "buffer": null, "rank": 1, "peer": null}
 * `code` is a stable name of planner/status.h; `kind` says what the caller can do: input, peer, state, deadline,
 * credentials, resource, data_loss or internal. tensor, buffer, rank and peer are null where they are not known. No C++
 * exception leaves a function. Options and memory that are no JSON, lack a field, have an unknown one or one of the
 * wrong type are "invalid_option"; a part or manifest that is, "malformed".
 *
 * Texts. Those that come in are UTF-8 and end in NUL; they are read during the call only. Those that go out through a
 * result pointer are the caller's, to be freed by hr_free.
 *
 * Times are seconds, >= 0; infinity: no limit.
 *
 * Handles. What a _start, _join or _open made is released once by its _free (NULL: nothing happens), which may not run
 * beside another call of the same handle. Handles are independent of each other; free receivers and publishers before
 * the coordinator, or their sessions end by the loss of it.
 *
 * Threads. Every function may be called from any thread, and a call that waits keeps none of the others out; for one
 * handle the functions marked [one at a time] must not overlap each other. None of them calls back.
 *
 * A "part" is a manifest (docs/manifest.md) as JSON text with one member's side filled; "tensors", "source" and
 * "destination" must be there.
 *
 * `timeouts` in options, each field and the object itself optional, equal at all members:
 *   {"heartbeat_period": 0.5, "heartbeat_timeout": 6, "join": 60, "plan": 60, "decision": 30, "commit": 600,
 *    "rejoin": 0}
 * (loader/session/types.h says what each limits.)
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Frees a text that a function returned or stored; NULL: nothing happens. */
void hr_free(char* text);

/* Validates, plans and proves a manifest. policy: "auto" or "hybrid" (planner/plan.h). `figures`: those of
 * `headrace plan --json` (docs/manifest.md), without lists. */
char* hr_plan(const char* manifest, const char* policy, char** figures);

/* ---- Coordinator ------------------------------------------------------------------------------------------------- */

typedef struct hr_coordinator hr_coordinator;

/* options: {"job", "token", "incarnation", "publishers": 2, "workers": [2, 2], "listen": "127.0.0.1:0"} and, all
 * optional, `timeouts`, "policy", "tls", "trust_network".
 *  workers: of each engine that the first epoch waits for; none: an engine may come later, and says its own size.
 *  listen: "host:port", port 0: any; IPv6 in brackets.
 *  policy: "auto" (default): every tensor is resharded, "hybrid": QKV and Mamba weights are broadcast (planner/plan.h).
 *  tls: {"certificate", "key"} and optional "client_ca": names of PEM files (loader/control/tls.h).
 *  trust_network: true allows a listen address beyond loopback without tls. */
char* hr_coordinator_start(const char* options, hr_coordinator** coordinator);
/* "127.0.0.1:4711" */
char* hr_coordinator_address(hr_coordinator* coordinator, char** address);
/* {"phase": "joining" | "planning" | "ready" | "suspended" | "ended", "epoch": 1, "error": null or as above,
 *  "waiting_for": "...", "root": hex digest, "last_announced": 0, "engine_committed": [0, 0]}. suspended: members are
 *  missing without whom no plan can be made, and the job waits for them (timeouts.rejoin). epoch: counts the
 *  memberships. engine_committed: the newest generation of each engine. */
char* hr_coordinator_status(hr_coordinator* coordinator, char** status);
/* Ends the job for the members that are still there. Idempotent. */
char* hr_coordinator_stop(hr_coordinator* coordinator);
void hr_coordinator_free(hr_coordinator* coordinator);

/* ---- Publisher --------------------------------------------------------------------------------------------------- */

typedef struct hr_publisher hr_publisher;

/* Blocks until all members agreed on the plan.
 * options: {"coordinator": "host:port", "token", "job", "incarnation": "" (whichever), "rank", "transport": "host"}
 * and, all optional, "publishing", "chunk_bytes", "staging_bytes", "connect_timeout", `timeouts`, "tls",
 * "trust_network", "devices", "gpu".
 *  publishing: "snapshot" (default): the weights are copied, "hold": they are read themselves (loader/publisher.h).
 *  tls: {"ca"} and optional "certificate" with "key", "server_name": names of PEM files (loader/control/tls.h).
 *  trust_network: true sends the token in clear beyond loopback where there is no tls.
 *  devices: a list of network devices, for "ucx" (loader/transport/factory.h).
 *  gpu: a device number of CUDA: addresses may be memory of this GPU; which are is found out. Without it no CUDA is
 *   loaded (loader/gpu/gpu_options.h names the file to load).
 * memory: a JSON list of `count` buffer names; addresses[i] is the first element of the i-th. The memory must outlive
 *  the handle and must not change during hr_publisher_publish; "hold": until hr_publisher_await_release returned. */
char* hr_publisher_join(const char* options, const char* part, const char* memory, const void* const* addresses,
                        size_t count, hr_publisher** publisher);
/* [one at a time] Writes the snapshot and returns; waits only while receivers read both slots, and with "gpu" first for
 * all that was enqueued on `stream` (a cudaStream_t; 0: the legacy default stream). Without "gpu" it is 0. */
char* hr_publisher_publish(hr_publisher* publisher, uint64_t generation, double timeout, uintptr_t stream);
/* [one at a time] Waits until the weights of `generation` may change: "snapshot": not at all. "deadline": they may
 * change, and the generation is void. */
char* hr_publisher_await_release(hr_publisher* publisher, uint64_t generation, double timeout);
/* Waits until every engine of the job committed `generation` or a newer one; while there is none, for one to come. */
char* hr_publisher_await_commit(hr_publisher* publisher, uint64_t generation, double timeout);
/* [one at a time] Waits until no receiver reads a snapshot, then leaves. Nothing but _status, _stats and _free may
 * follow. */
char* hr_publisher_close(hr_publisher* publisher, double timeout);
/* NULL while the session lives; then why it ended. */
char* hr_publisher_status(hr_publisher* publisher);
/* The fields of PublisherStats. */
char* hr_publisher_stats(hr_publisher* publisher, char** stats);
void hr_publisher_free(hr_publisher* publisher);

/* ---- Receiver ---------------------------------------------------------------------------------------------------- */

typedef struct hr_receiver hr_receiver;

/* Blocks until all members agreed on the plan.
 * options: as a publisher's with "engine", "worker", "shadow": "host" | "device" | "off" in place of "rank"; optional
 *  "transfer_timeout", "carried": what hr_receiver_carry of this worker's earlier session gave, and "workers": how many
 *  its engine has, which an engine that the coordinator was not told of must say. "standby": true lets engines that
 *  come when no trainer is left read this worker's live buffers, while they do not change. With buffers on a "gpu"
 *  standby is false, and shadow "device" and "off" want all of them there and the transport "cuda" or one of messages.
 * memory: a JSON list of `count` objects {"name", "shape": [..], "strides": [..]} (elements); addresses[i] is the first
 *  element of the i-th; optional "live": false where the engine does not compute with it, so that _stage writes it also
 *  with a shadow. The memory must outlive the handle; it is written inside _stage (shadow "off") and _apply or _commit.
 */
char* hr_receiver_join(const char* options, const char* part, const char* memory, void* const* addresses, size_t count,
                       hr_receiver** receiver);
/* [one at a time] Waits for an announced generation that was not staged yet, or one that was given up before that since
 * the trainer's replicas differ, which _stage then says (replica_divergence). */
char* hr_receiver_next_generation(hr_receiver* receiver, double timeout, uint64_t* generation);
/* [one at a time] Streams, verifies, votes, waits for the decision. `memory` restates the host's buffers. With "gpu"
 * and shadow "off" it waits first for all that was enqueued on `stream`, as _apply. */
char* hr_receiver_stage(hr_receiver* receiver, uint64_t generation, const char* memory, void* const* addresses,
                        size_t count, uintptr_t stream);
/* [one at a time] The engine is paused: writes the staged generation to the live buffers. With "gpu" it waits first for
 * all that was enqueued on `stream` (as hr_publisher_publish); it returns when the last byte is written. */
char* hr_receiver_apply(hr_receiver* receiver, uint64_t generation, uintptr_t stream);
/* [one at a time] Applies the generation unless that was done, and waits until every worker of the engine has come
 * here. A host that derives state from the weights does so between _apply and _commit. `stream`: _apply's. */
char* hr_receiver_commit(hr_receiver* receiver, uint64_t generation, uintptr_t stream);
/* The host failed between _apply and _commit: ends the session by this error (an object as above; "code"
 * and "message" suffice), which the other members learn, and leaves the worker poisoned. */
char* hr_receiver_abandon(hr_receiver* receiver, const char* error);
/* [one at a time] Leaves. Nothing but _serving, _carry, _status, _waiting_for, _stats and _free may follow. */
char* hr_receiver_close(hr_receiver* receiver, double timeout);
/* 1 and the generation that may be served now (0: the weights that were there at first), or 0: poisoned. */
int hr_receiver_serving(hr_receiver* receiver, uint64_t* generation);
/* {"committed_generation", "committed_incarnation", "poisoned"} for this worker's next session. */
char* hr_receiver_carry(hr_receiver* receiver, char** carried);
char* hr_receiver_status(hr_receiver* receiver);
/* In words, empty: nothing. */
char* hr_receiver_waiting_for(hr_receiver* receiver, char** words);
/* The fields of ReceiverStats. */
char* hr_receiver_stats(hr_receiver* receiver, char** stats);
void hr_receiver_free(hr_receiver* receiver);

/* ---- Checkpoint -------------------------------------------------------------------------------------------------- */

typedef struct hr_checkpoint hr_checkpoint;

/* Maps a directory's safetensors files read-only (engine_adapters/safetensors/checkpoint.h). */
char* hr_checkpoint_open(const char* directory, hr_checkpoint** checkpoint);
/* A publisher's part: every tensor is a source buffer of its name at this rank. */
char* hr_checkpoint_part(hr_checkpoint* checkpoint, int rank, char** part);
/* {buffer: address}. The addresses are valid until _free. */
char* hr_checkpoint_memory(hr_checkpoint* checkpoint, char** memory);
void hr_checkpoint_free(hr_checkpoint* checkpoint);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_ENGINE_ADAPTERS_C_API_HEADRACE_H_ */
