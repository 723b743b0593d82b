/* The C interface of the statcollect agent, for other languages. All functions are thread-safe,
 * never throw and, unless stated otherwise, never block on the network. Functions that return int
 * return 0 on success, otherwise a gRPC status code (3 invalid argument, 4 deadline exceeded, 6
 * already exists, 14 unavailable) with a message in statagent_last_error(). Set struct_size of each
 * structure to its sizeof, so that later versions can add fields at the end. */
#ifndef STATAGENT_STATAGENT_H_
#define STATAGENT_STATAGENT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define STATAGENT_C_API __attribute__((visibility("default")))
#else
#define STATAGENT_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct statagent_agent statagent_agent;

/* Null pointers and negative numbers mean "not set": the environment (STATAGENT_<NAME>) applies,
 * otherwise the default. */
typedef struct {
  uint32_t struct_size;
  const char* run;
  const char* collector; /* host:port */
  const char* if_exists; /* "error", "replace", "append" */
  const char* const* config_keys;
  const char* const* config_values;
  uint64_t config_count;
  int32_t required; /* 0, 1, or -1: not set */
  int64_t rank, local_rank, world_size;
  const char* launch;
  const char* steps;
  int64_t sketch;  /* 0, 16, 32, 64 */
  int64_t samples; /* 0..1024 */
  int64_t buffer_records_max;
  int64_t connect_timeout_ms;
  int64_t threads; /* 1..64 */
  const char* spill_dir;
  const char* spill_limit; /* "1GiB" */
  const char* captures;    /* "NAME@STEPS; ..." */
  const char* exponents;   /* "PATTERN@STEPS; ..." */
  const char* tls_ca;      /* PEM files; with tls_ca the connection uses TLS */
  const char* tls_cert;
  const char* tls_key;
  const char* project; /* read if struct_size covers it, as the following */
  const char* ranks;   /* "0,8-15": the agents of other ranks do nothing */
  const char* log;     /* "off", "error", "warning", "info" */
  const char* ring;    /* "3,64MiB": values of the last steps, kept for when something breaks */
} statagent_options;

/* dtype, kind, mode: numeric values of DType, Kind, Mode in statagent/types.h. */
typedef struct {
  uint32_t struct_size;
  const char* name;        /* UTF-8, NUL-terminated */
  const char* output_path; /* may be null */
  const char* parent;      /* may be null */
  const char* class_name;  /* may be null */
  uint32_t kind;
  uint32_t mode;
  uint32_t micro_batch;
  uint32_t call;
  int32_t depth;
} statagent_identity;

/* The place of a tensor's elements in a logical tensor that several processes hold together: boxes,
 * or ranges of the flattened logical tensor. See Placement in statagent/tensor_view.h. */
typedef struct {
  uint32_t struct_size;
  uint32_t ndim;               /* of the logical tensor */
  const int64_t* global_shape; /* ndim entries */
  const int64_t* boxes;        /* for each box ndim offsets, then ndim sizes */
  const int64_t* ranges;       /* for each range start, stop */
  uint64_t box_count, range_count;
  /* For statagent_observe; read if struct_size covers them. */
  uint32_t partial; /* 1: a sum that is still to be reduced over the ranks with the same place */
  uint32_t piece,
      pieces; /* the batch is split over `pieces` ranks in an unknown order; 0 pieces mean 1 */
  /* 1 + a dimension in which the tensor has a set of entries in any order, and the logical tensor
   * the size 1; 0: none */
  uint32_t unordered;
} statagent_placement;

typedef struct {
  uint32_t struct_size;
  uint32_t dtype;
  const void* data;
  const int64_t* shape;   /* ndim entries, elements */
  const int64_t* strides; /* ndim entries, elements; null: contiguous row-major */
  uint32_t ndim;
  int32_t device; /* 0 CPU, 1 CUDA */
  int32_t device_index;
  /* Null: not known; statagent_compute then takes the tensor as the whole. Read if struct_size
   * covers it. */
  const statagent_placement* placement;
} statagent_tensor;

typedef struct {
  uint32_t struct_size;
  uint32_t has_finite; /* 1 if min..l2 are valid */
  uint64_t numel, nan, pos_inf, neg_inf, zero, neg, pos;
  double min, max, mean, std, l1, l2;
  uint64_t hash;
  uint32_t sketch_count, sample_count; /* written to the arrays passed to statagent_compute */
} statagent_statistics;

typedef struct {
  uint32_t struct_size;
  uint64_t produced, acked, pending, dropped; /* produced == acked + dropped + pending */
  uint64_t spilled;                           /* part of pending: in the spill file */
} statagent_counts;

/* Memory at one point in time. phase, present: MemoryPhase and bits of MemoryQuantity in
 * statagent/types.h; bytes: one number for each bit that is set, lowest bit first. */
typedef struct {
  uint32_t struct_size;
  uint32_t phase;
  uint32_t micro_batch;
  uint32_t present;
  const char* device; /* "cuda:0", "cpu" */
  const char* module; /* qualified path, if measured for one module's pass; may be null */
  const int64_t* bytes;
} statagent_memory;

/* Fraction of an input that is not padding. type: DensityType in statagent/types.h. */
typedef struct {
  uint32_t struct_size;
  uint32_t type;
  uint32_t micro_batch;
  uint32_t samples; /* entries of valid_per_sample, at most 4096; 0 for more samples */
  const char* input;
  int64_t pad_index;     /* elements of this value are padding */
  uint64_t valid, total; /* elements */
  const uint64_t* valid_per_sample;
} statagent_density;

/* What a tap had for some tokens: `rows`, a matrix with a row for each of `count` tokens; of each
 * the key (statagent_token_keys) and the position in its sequence. */
typedef struct {
  uint32_t struct_size;
  uint32_t call;         /* n-th call of the tap in the step */
  uint32_t first_column; /* the rows are a part, from here on, of longer ones */
  uint32_t reserved;     /* 0 */
  const char* tap;
  const statagent_tensor* rows;
  uint64_t count;
  const uint64_t* keys;
  const uint32_t* positions;
  const int64_t* index; /* the matrix's rows, one for each token; null: it has one for each */
  void* stream;         /* of CUDA, that produced the matrix */
} statagent_token_rows;

/* Message of the calling thread's last failed call; "" if none. Valid until the thread's next call.
 */
STATAGENT_C_API const char* statagent_last_error(void);
STATAGENT_C_API const char* statagent_version(void);

/* Waits up to connect_timeout_ms for the collector's answer. 6: the run has data and if_exists is
 * "error". */
STATAGENT_C_API int statagent_start(const statagent_options* options, statagent_agent** agent);
/* Flushes, sends the goodbye and joins the threads. In the last fifth of the timeout, at most 0.4
 * s, a connected collector learns what it will not receive. Pending records stay in the spill file;
 * without one they are counted as dropped and reported on standard error. If the spill file's disk
 * hangs for a fifth of the timeout (0.4 to 5 s) after that, the threads are abandoned, and it
 * returns 4. Idempotent; keeps the handle. */
STATAGENT_C_API int statagent_close(statagent_agent* agent, int64_t timeout_ms);
/* Like statagent_close, for a process that failed: without the goodbye, so the run is shown as
 * interrupted. */
STATAGENT_C_API int statagent_close_failed(statagent_agent* agent, int64_t timeout_ms);
/* Like statagent_close, for a program that failed before it recorded anything: if no rank has
 * recorded anything, the collector removes the run, so that its name is free. */
STATAGENT_C_API int statagent_close_unused(statagent_agent* agent, int64_t timeout_ms);
/* Closes the agent (2 s) if it is open, and releases the handle. Null is allowed. */
STATAGENT_C_API void statagent_free(statagent_agent* agent);

/* Interns an identity; equal identities get the same handle. */
STATAGENT_C_API int statagent_intern(statagent_agent* agent, const statagent_identity* identity,
                                     uint32_t* handle);
/* Records the tensor's statistics under the handle, in the current step. stream: CUDA stream, null
 * for CPU. A handle can be observed once per step; a second time is refused (3). */
STATAGENT_C_API int statagent_observe(statagent_agent* agent, uint32_t handle,
                                      const statagent_tensor* tensor, void* stream);
/* Observes several tensors of one stream; on a GPU with as few kernel launches as possible. A
 * tensor with an error does not stop the others: returns the first error, and their number in
 * *refused. */
STATAGENT_C_API int statagent_observe_list(statagent_agent* agent, uint64_t count,
                                           const uint32_t* handles,
                                           const statagent_tensor* const* tensors, void* stream,
                                           uint64_t* refused);
STATAGENT_C_API int statagent_log_scalar(statagent_agent* agent, const char* name, double value,
                                         uint32_t micro_batch);
STATAGENT_C_API int statagent_log_event(statagent_agent* agent, const char* kind, const char* text,
                                        const char* const* field_keys,
                                        const char* const* field_values, uint64_t field_count);
/* The same for the current or an earlier step, for values that become known late. 3: a future step.
 */
STATAGENT_C_API int statagent_log_scalar_at(statagent_agent* agent, const char* name, double value,
                                            uint32_t micro_batch, uint64_t step);
STATAGENT_C_API int statagent_log_event_at(statagent_agent* agent, uint64_t step, const char* kind,
                                           const char* text, const char* const* field_keys,
                                           const char* const* field_values, uint64_t field_count);
/* Adds configuration that was not known at the start. The newest value of a key wins. 8: over 4000
 * keys. */
STATAGENT_C_API int statagent_add_config(statagent_agent* agent, const char* const* keys,
                                         const char* const* values, uint64_t count);
STATAGENT_C_API int statagent_log_memory(statagent_agent* agent, const statagent_memory* memory);
/* The step may be an earlier one. */
STATAGENT_C_API int statagent_log_density(statagent_agent* agent, const statagent_density* density,
                                          uint64_t step);
/* Records statistics of each row, in the current or an earlier step; step: null for the current
 * one, if it is recorded. */
STATAGENT_C_API int statagent_record_rows(statagent_agent* agent, const statagent_token_rows* rows,
                                          const uint64_t* step);
STATAGENT_C_API void statagent_end_step(statagent_agent* agent);
/* Jumps forward to a step, at most 2^63-1. */
STATAGENT_C_API int statagent_set_step(statagent_agent* agent, uint64_t step);
/* CUDA graphs. statagent_replays_in sets the stream in which they are replayed on a device;
   statagent_replay_devices has bit d set if device d has graphs that record something. See
   Agent::ReplaysIn in agent.h. */
STATAGENT_C_API void statagent_replays_in(statagent_agent* agent, int32_t device, void* stream);
STATAGENT_C_API uint64_t statagent_replay_devices(const statagent_agent* agent);
STATAGENT_C_API uint64_t statagent_step(const statagent_agent* agent);
STATAGENT_C_API int statagent_step_wanted(const statagent_agent* agent); /* 1 or 0 */
/* For programs that record full statistics only in some steps. statagent_step_asked: 1 if the
   collector asked for the current step, with `statctl set-steps` or for raw values.
   statagent_next_full_steps: 1 if the oldest announcement to all ranks that was not yet returned is
   written: the steps first..last (without an end: UINT64_MAX) that are divisible by `every`; 0:
   none waits. */
STATAGENT_C_API int statagent_step_asked(const statagent_agent* agent);
STATAGENT_C_API int statagent_next_full_steps(statagent_agent* agent, uint64_t* first,
                                              uint64_t* last, uint64_t* every);
STATAGENT_C_API uint32_t statagent_rank(const statagent_agent* agent);
STATAGENT_C_API uint32_t statagent_world_size(const statagent_agent* agent);
/* 1 if this process records, with its number from 0 among those of its launch that do, and how many
   they are. 0: it does not, because of STATAGENT_DISABLE or `ranks`; the agent's functions then do
   nothing. */
STATAGENT_C_API int statagent_records(const statagent_agent* agent, uint32_t* number,
                                      uint32_t* count);
/* Blocks up to the timeout. 4: records are still pending. */
STATAGENT_C_API int statagent_flush(statagent_agent* agent, int64_t timeout_ms);
STATAGENT_C_API int statagent_counters(const statagent_agent* agent, statagent_counts* counts);
/* Calls `visit` for each cause of dropped records. */
STATAGENT_C_API int statagent_dropped(const statagent_agent* agent,
                                      void (*visit)(void* context, const char* cause, uint64_t n),
                                      void* context);

/* Computes the statistics of one tensor, without an agent. sketch_out has room for `sketch`
 * doubles, samples_out for `samples` doubles. */
STATAGENT_C_API int statagent_compute(const statagent_tensor* tensor, uint32_t sketch,
                                      uint32_t samples, statagent_statistics* statistics,
                                      double* sketch_out, double* samples_out);

/* The same in the CUDA stream that produced the tensor. Waits for the result, at most one minute
 * (4). */
STATAGENT_C_API int statagent_compute_on(const statagent_tensor* tensor, uint32_t sketch,
                                         uint32_t samples, void* stream,
                                         statagent_statistics* statistics, double* sketch_out,
                                         double* samples_out);
/* Counts the binary exponents floor(log2(|x|)) of the finite nonzero elements (complex: of both
   parts). counts[e - lowest] is the count of exponent e, with `count` entries; the first and last
   include everything beyond them. Exponents of float64 range from -1074 to 1023. */
STATAGENT_C_API int statagent_exponents(const statagent_tensor* tensor, int32_t lowest,
                                        uint32_t count, uint64_t* counts);
/* The same in the CUDA stream that produced the tensor, like statagent_compute_on. */
STATAGENT_C_API int statagent_exponents_on(const statagent_tensor* tensor, int32_t lowest,
                                           uint32_t count, void* stream, uint64_t* counts);

/* Statistics of each of `count` rows of a matrix, without an agent, as token records
   have them; sketches: 8 for each row. */
STATAGENT_C_API int statagent_compute_rows(const statagent_tensor* rows, uint32_t first_column,
                                           uint64_t count, float* l2, uint64_t* hashes,
                                           float* sketches);
/* The same in the CUDA stream that produced the matrix, like statagent_compute_on. */
STATAGENT_C_API int statagent_compute_rows_on(const statagent_tensor* rows, uint32_t first_column,
                                              uint64_t count, void* stream, float* l2,
                                              uint64_t* hashes, float* sketches);
/* Keys of tokens: of each, a hash of its id and all ids before it in its sequence. ids, keys:
   `sequences` times `length`. before: for each sequence the key before its first id; null: nothing
   came before. */
STATAGENT_C_API int statagent_token_keys(const int64_t* ids, uint64_t sequences, uint64_t length,
                                         const uint64_t* before, uint64_t* keys);

/* The text of a setting, or of anything else if `name` is null, as the agent stores it: without
   secrets. Writes it to `to` with a terminating null, if it fits into *bytes, and its length to
   *bytes. Code 8 (resource exhausted) if it does not fit. */
STATAGENT_C_API int statagent_redact(const char* name, const char* value, char* to,
                                     uint64_t* bytes);

/* Two tensors of one shape, in components (a complex element is two, in an innermost dimension of
 * their own). dtype: float64, float32, float16 or bfloat16. Strides in components; those of the
 * index say where a component lies in the logical tensor. */
typedef struct {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t ndim;
  uint32_t reserved; /* 0 */
  const int64_t* shape;
  const int64_t* from_strides;
  const int64_t* to_strides;
  const int64_t* index_strides;
  uint64_t first_index; /* of the first component */
  double ulps; /* noise is uniform within this many units in the last place, at most a quarter of a
                  value */
} statagent_noise;
/* Writes `from`, a CPU tensor, with noise in its last places to `to`; with difference = 1, what it
 * differs by. The noise is a function of key, step, index and the value's bits:
 * docs/decisions/0055-twins.md. Both tensors are the same or do not overlap. */
STATAGENT_C_API int statagent_add_noise(const statagent_noise* noise, const void* from, void* to,
                                        uint64_t key, uint64_t step, int32_t difference);

/* A set of steps ("0-9,20,100-", "0-99,every=10"). */
typedef struct statagent_steps statagent_steps;
STATAGENT_C_API int statagent_steps_parse(const char* text, statagent_steps** steps);
STATAGENT_C_API int statagent_steps_contains(const statagent_steps* steps, uint64_t step);
STATAGENT_C_API void statagent_steps_free(statagent_steps* steps);

#ifdef __cplusplus
}
#endif

#endif /* STATAGENT_STATAGENT_H_ */
