#include "run/copies.hpp"
#include "run/interpose.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <string_view>

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
constinit Entry entries[] = {PENSTOCK_RUN_BLOCKING_COPIES(ENTRY) PENSTOCK_RUN_ASYNC_COPIES(ENTRY)
                                 PENSTOCK_RUN_OTHER_ENTRIES(ENTRY)};
#undef ENTRY

enum Index : std::size_t {
#define INDEX(symbol, ...) k_##symbol,
  PENSTOCK_RUN_BLOCKING_COPIES(INDEX) PENSTOCK_RUN_ASYNC_COPIES(INDEX) PENSTOCK_RUN_OTHER_ENTRIES(INDEX)
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

/// What the program gets for the answer `function` of cuGetProcAddress.
void replace(const char* name, int version, DefaultStream wanted, void** function) {
  Entry* best = nullptr;
  for (Entry& entry : entries) {
    const bool fits = entry.default_stream == wanted || entry.default_stream == DefaultStream::either;
    if (!fits || entry.since > version || std::string_view(entry.name) != name) continue;
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

#define DEFINE_COPY(symbol, name, since, default_stream, ends)                    \
  Result symbol(Address to, Address from, std::size_t bytes) {                    \
    const Stream stream = named(nullptr, DefaultStream::default_stream);          \
    return copy({to, from, bytes, stream, Ends::ends, true}, real_of(k_##symbol), \
                [&] { return call_real(k_##symbol, to, from, bytes); });          \
  }
PENSTOCK_RUN_BLOCKING_COPIES(DEFINE_COPY)
#undef DEFINE_COPY
#define DEFINE_COPY(symbol, name, since, default_stream, ends)                                        \
  Result symbol(Address to, Address from, std::size_t bytes, Stream stream) {                         \
    return copy({to, from, bytes, named(stream, DefaultStream::default_stream), Ends::ends, false},   \
                real_of(k_##symbol), [&] { return call_real(k_##symbol, to, from, bytes, stream); }); \
  }
PENSTOCK_RUN_ASYNC_COPIES(DEFINE_COPY)
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
