#include "run/copies.hpp"
#include "run/interpose.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// The functions, named as the driver's. Arguments that are only handed on are words.
using Word = std::uint64_t;
using penstock::run::Address;
using penstock::run::Result;
using penstock::run::Stream;

#define DECLARE_COPY(symbol, name, since, default_stream, ends) \
  EXPORT Result symbol(Address to, Address from, std::size_t bytes);
PENSTOCK_RUN_BLOCKING_COPIES(DECLARE_COPY)
#undef DECLARE_COPY
#define DECLARE_COPY(symbol, name, since, default_stream, ends) \
  EXPORT Result symbol(Address to, Address from, std::size_t bytes, Stream stream);
PENSTOCK_RUN_ASYNC_COPIES(DECLARE_COPY)
#undef DECLARE_COPY
#define DECLARE_COPY(symbol, name, since, default_stream, kind) \
  EXPORT Result symbol(const penstock::run::kind* box);
PENSTOCK_RUN_BLOCKING_BOXES(DECLARE_COPY)
#undef DECLARE_COPY
#define DECLARE_COPY(symbol, name, since, default_stream, kind) \
  EXPORT Result symbol(const penstock::run::kind* box, Stream stream);
PENSTOCK_RUN_ASYNC_BOXES(DECLARE_COPY)
#undef DECLARE_COPY
#define DECLARE_COPY(symbol, name, since, default_stream)                                                   \
  EXPORT Result symbol(const Address* to, const Address* from, const std::size_t* bytes, std::size_t count, \
                       const penstock::run::BatchAttributes* attributes, const std::size_t* first_of,       \
                       std::size_t kinds, std::size_t* failed, Stream stream);
PENSTOCK_RUN_FAILING_BATCHES(DECLARE_COPY)
#undef DECLARE_COPY
#define DECLARE_COPY(symbol, name, since, default_stream)                                                   \
  EXPORT Result symbol(const Address* to, const Address* from, const std::size_t* bytes, std::size_t count, \
                       const penstock::run::BatchAttributes* attributes, const std::size_t* first_of,       \
                       std::size_t kinds, Stream stream);
PENSTOCK_RUN_BATCHES(DECLARE_COPY)
#undef DECLARE_COPY
EXPORT Result cuDevicePrimaryCtxReset_v2(penstock::run::Ordinal);
EXPORT Result cuGetProcAddress(const char*, void**, int, Word);
EXPORT Result cuGetProcAddress_v2(const char*, void**, int, Word, int*);
EXPORT Result cuGetProcAddress_v2_ptsz(const char*, void**, int, Word, int*);

namespace penstock::run {

namespace {

constexpr Word kPerThreadFlag = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
constexpr Word kLegacyFlag = 1;

enum class DefaultStream : std::uint8_t { legacy, per_thread, either };

struct Entry {
  const char* symbol;
  const char* name;
  int since;
  DefaultStream default_stream;
  void* (*ours)();
  std::atomic<void*> real = nullptr;
};

#define ENTRY(symbol, name, since, default_stream, ...) \
  {#symbol, #name, since, DefaultStream::default_stream, [] { return reinterpret_cast<void*>(&::symbol); }},
// Without a constructor: other libraries look functions up before this one is initialised.
constinit Entry entries[] = {PENSTOCK_RUN_ENTRIES(ENTRY)};
#undef ENTRY

enum Index : std::size_t {
#define INDEX(symbol, ...) k_##symbol,
  PENSTOCK_RUN_ENTRIES(INDEX)
#undef INDEX
};

std::atomic<void*> first_driver{nullptr};  ///< where its library begins

void* base_of(const void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

/// Remembers the driver's own function. False if it is of another driver than the first, or is ours: a driver
/// that looks its functions up by their names finds those of a preloaded library.
bool keep_real(Entry& entry, void* real) {
  if (is_own_code(real)) return false;
  void* const base = base_of(real);
  void* first = nullptr;
  if (base != nullptr && !first_driver.compare_exchange_strong(first, base) && first != base) return false;
  void* none = nullptr;
  entry.real.compare_exchange_strong(none, real);
  return true;
}

/// Null if the program has loaded no driver.
void* real_of(Index index) {
  Entry& entry = entries[index];
  if (void* const real = entry.real) return real;
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void* const real = library != nullptr ? real_dlsym(library, entry.symbol) : nullptr;
  if (real != nullptr) keep_real(entry, real);
  return real;
}

template <typename... Arguments>
Result call_real(Index index, Arguments... arguments) {
  const auto real = reinterpret_cast<Result (*)(Arguments...)>(real_of(index));
  return real != nullptr ? real(arguments...) : kNotInitialized;
}

/// Of the driver that `function` is of. 0: unknown.
int driver_version(const void* function) {
  int version = 0;
  void* const library = ::dlopen(library_of(function).c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const auto ask = reinterpret_cast<Result (*)(int*)>(
      library != nullptr ? real_dlsym(library, "cuDriverGetVersion") : nullptr);
  return ask != nullptr && ask(&version) == kSuccess ? version : 0;
}

/// What the program gets for the answer `function` of cuGetProcAddress.
void replace(const char* name, int version, DefaultStream wanted, void** function) {
  Entry* best = nullptr;
  int newest = 0;  // that the driver can have answered with
  for (Entry& entry : entries) {
    const bool fits = entry.default_stream == wanted || entry.default_stream == DefaultStream::either;
    if (!fits || std::string_view(entry.name) != name) continue;
    if (newest == 0) newest = std::min(version, driver_version(*function));
    if (entry.since > newest) continue;
    if (best == nullptr || entry.since > best->since) best = &entry;
  }
  if (best != nullptr && keep_real(*best, *function)) *function = best->ours();
}

/// The same for the calls that cuGetProcAddress itself has in several forms.
Result replace_answer(Result result, const char* name, void** function, int version, Word flags,
                      DefaultStream usual) {
  if (result != kSuccess || *function == nullptr) return result;
  if ((flags & kPerThreadFlag) != 0) usual = DefaultStream::per_thread;
  if ((flags & kLegacyFlag) != 0) usual = DefaultStream::legacy;
  replace(name, version, usual, function);
  return result;
}

Stream named(Stream stream, DefaultStream usual) {
  return stream == nullptr && usual == DefaultStream::per_thread ? kPerThreadStream : stream;
}

Result copy_run(Run run, Stream stream, bool blocking, Index index, FunctionRef<Result()> by_driver) {
  return copy({{&run, 1}, stream, blocking}, real_of(index), by_driver);
}

Result copy_box(const BoxCopy& box, Stream stream, bool blocking, Index index,
                FunctionRef<Result()> by_driver) {
  const std::optional<Run> one = as_run(box);
  const Run run = one.value_or(Run{.bytes = box.width * box.height * box.depth});
  return copy({{&run, 1}, stream, blocking, one ? Form::plain : Form::other}, real_of(index), by_driver);
}
Result copy_box(const PlaneCopy& plane, Stream stream, bool blocking, Index index,
                FunctionRef<Result()> by_driver) {
  return copy_box(as_box(plane), stream, blocking, index, by_driver);
}

Result copy_batch(const Batch& batch, Stream stream, Index index, FunctionRef<Result()> by_driver) {
  // The driver refuses batches on the legacy default stream.
  if (!is_valid(batch) || stream == nullptr || stream == kLegacyStream) return by_driver();
  std::vector<Run> runs(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) runs[i] = {batch.to[i], batch.from[i], batch.bytes[i]};
  const Form form = is_in_stream_order(batch) ? Form::in_stream_order : Form::plain;
  return copy({runs, stream, false, form}, real_of(index), by_driver);
}

}  // namespace

void* stand_in(const char* symbol, void* real) {
  for (Entry& entry : entries) {
    if (std::strcmp(entry.symbol, symbol) != 0) continue;
    if (real == entry.ours()) return real;  // the answer for RTLD_DEFAULT
    return real != nullptr && keep_real(entry, real) ? entry.ours() : nullptr;
  }
  return nullptr;
}

std::string library_of(const void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "libcuda.so.1";
}

}  // namespace penstock::run

using namespace penstock::run;

#define DEFINE_COPY(symbol, name, since, default_stream, ends)               \
  Result symbol(Address to, Address from, std::size_t bytes) {               \
    const Stream stream = named(nullptr, DefaultStream::default_stream);     \
    return copy_run({to, from, bytes, Ends::ends}, stream, true, k_##symbol, \
                    [&] { return call_real(k_##symbol, to, from, bytes); }); \
  }
PENSTOCK_RUN_BLOCKING_COPIES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream, ends)                                          \
  Result symbol(Address to, Address from, std::size_t bytes, Stream stream) {                           \
    return copy_run({to, from, bytes, Ends::ends}, named(stream, DefaultStream::default_stream), false, \
                    k_##symbol, [&] { return call_real(k_##symbol, to, from, bytes, stream); });        \
  }
PENSTOCK_RUN_ASYNC_COPIES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream, kind)                                               \
  Result symbol(const kind* box) {                                                                           \
    const auto by_driver = [&] { return call_real(k_##symbol, box); };                                       \
    return box == nullptr                                                                                    \
               ? by_driver()                                                                                 \
               : copy_box(*box, named(nullptr, DefaultStream::default_stream), true, k_##symbol, by_driver); \
  }
PENSTOCK_RUN_BLOCKING_BOXES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream, kind)                                               \
  Result symbol(const kind* box, Stream stream) {                                                            \
    const auto by_driver = [&] { return call_real(k_##symbol, box, stream); };                               \
    return box == nullptr                                                                                    \
               ? by_driver()                                                                                 \
               : copy_box(*box, named(stream, DefaultStream::default_stream), false, k_##symbol, by_driver); \
  }
PENSTOCK_RUN_ASYNC_BOXES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream)                                                  \
  Result symbol(const Address* to, const Address* from, const std::size_t* bytes, std::size_t count,      \
                const BatchAttributes* attributes, const std::size_t* first_of, std::size_t kinds,        \
                std::size_t* failed, Stream stream) {                                                     \
    return copy_batch({to, from, bytes, count, attributes, first_of, kinds},                              \
                      named(stream, DefaultStream::default_stream), k_##symbol, [&] {                     \
                        return call_real(k_##symbol, to, from, bytes, count, attributes, first_of, kinds, \
                                         failed, stream);                                                 \
                      });                                                                                 \
  }
PENSTOCK_RUN_FAILING_BATCHES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream)                                                     \
  Result symbol(const Address* to, const Address* from, const std::size_t* bytes, std::size_t count,         \
                const BatchAttributes* attributes, const std::size_t* first_of, std::size_t kinds,           \
                Stream stream) {                                                                             \
    return copy_batch(                                                                                       \
        {to, from, bytes, count, attributes, first_of, kinds}, named(stream, DefaultStream::default_stream), \
        k_##symbol,                                                                                          \
        [&] { return call_real(k_##symbol, to, from, bytes, count, attributes, first_of, kinds, stream); }); \
  }
PENSTOCK_RUN_BATCHES(DEFINE_COPY)
#undef DEFINE_COPY

Result cuDevicePrimaryCtxReset_v2(Ordinal device) {
  leave_device(device);
  return call_real(k_cuDevicePrimaryCtxReset_v2, device);
}

Result cuGetProcAddress(const char* name, void** function, int version, Word flags) {
  const Result result = call_real(k_cuGetProcAddress, name, function, version, flags);
  return replace_answer(result, name, function, version, flags, DefaultStream::legacy);
}
Result cuGetProcAddress_v2(const char* name, void** function, int version, Word flags, int* status) {
  const Result result = call_real(k_cuGetProcAddress_v2, name, function, version, flags, status);
  return replace_answer(result, name, function, version, flags, DefaultStream::legacy);
}
Result cuGetProcAddress_v2_ptsz(const char* name, void** function, int version, Word flags, int* status) {
  const Result result = call_real(k_cuGetProcAddress_v2_ptsz, name, function, version, flags, status);
  return replace_answer(result, name, function, version, flags, DefaultStream::per_thread);
}
