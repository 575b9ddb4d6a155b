#pragma once

#include <cstddef>

/// How tests steer the fake driver. Everything is thread-safe and process-wide; `reset` at the start of a
/// test undoes what an earlier one set. Functions are named as the driver names them: "cuMemAlloc".
#define FAKE_CUDA_CONTROLS(X)                                                                                \
  /* Back to the defaults below: no failures, no delays, counts 0, contexts usable again. */                 \
  X(void, reset, ())                                                                                         \
  /* The `nth` call from now (1: the next) returns `code` and does nothing; 0: every call does. */           \
  X(void, fail, (const char* function, long nth, int code))                                                  \
  /* The same for the `nth` call of any function, but those that give something back, which would then stay, \
     and those that make a context current for them. */                                                      \
  X(void, fail_any, (long nth, int code))                                                                    \
  /* The function that `fail_any` failed; null: none yet. */                                                 \
  X(const char*, failed, ())                                                                                 \
  /* Whether the calling thread is in a call of the driver, or is a thread of the driver. */                 \
  X(int, is_inside, ())                                                                                      \
  /* The `nth` piece of work that `function` enqueues from now on fails when it runs, and from then on every \
     call returns `code`. */                                                                                 \
  X(void, fail_work, (const char* function, long nth, int code))                                             \
  /* Every call takes so much longer. */                                                                     \
  X(void, delay, (const char* function, long long nanoseconds))                                              \
  /* Every piece of work that `function` enqueues starts so much later. */                                   \
  X(void, delay_work, (const char* function, long long nanoseconds))                                         \
  X(long, calls, (const char* function))                                                                     \
  X(void, set_version, (int version)) /* 12080 */                                                            \
  X(void, set_devices, (int count))   /* 2 */                                                                \
  /* The host's GPU that this process sees as number 0, with those after it: CUDA_VISIBLE_DEVICES. */        \
  X(void, set_first_gpu, (int gpu))                /* 0 */                                                   \
  X(void, set_peer_access, (int possible))         /* between any two devices; 1 */                          \
  X(void, set_memory, (std::size_t bytes))         /* of each device; 1 GiB */                               \
  X(void, set_lock_limit, (std::size_t bytes))     /* registered and allocated host memory; no limit */      \
  X(void, set_read_only_register, (int supported)) /* 1 */                                                   \
  /* Whether devices see memory that is registered from now on at the address that the host does. */         \
  X(void, set_equal_addresses, (int equal)) /* 0 */                                                          \
  /* Whether device memory is managed: the driver then says that it lies on the host. */                     \
  X(void, set_managed, (int managed)) /* 0 */                                                                \
  /* All device memory that is allocated now is for its own device alone, as that of cuMemMap. */            \
  X(void, close_memory, ())                                                                                  \
  X(void, set_ipc, (int supported))           /* whether memory may have a name for other processes; 1 */    \
  X(void, set_init_result, (int code))        /* of cuInit; 0 */                                             \
  X(int, priority_of_stream, (void* handle))  /* as it was made */                                           \
  X(unsigned, flags_of_event, (void* handle)) /* the same */                                                 \
  X(unsigned, last_grid, ())                  /* blocks of the newest launch */                              \
  X(long, live_streams, ())                                                                                  \
  X(long, live_events, ())                                                                                   \
  X(long, live_modules, ())                                                                                  \
  X(long, live_contexts, ())                                                                                 \
  X(std::size_t, device_bytes, ()) /* allocated now, all devices */                                          \
  X(long, opened_memory, ())       /* allocations of other processes that are open now */                    \
  X(std::size_t, locked_bytes, ()) /* registered and allocated now */                                        \
  /* Calls that a forked child made although the driver cannot work there. */                                \
  X(long, calls_after_fork, ())

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

#define FAKE_CUDA_DECLARE(result, name, parameters) FAKE_CUDA_EXPORT result fake_cuda_##name parameters;
FAKE_CUDA_CONTROLS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE
