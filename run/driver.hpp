#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// The part of the CUDA driver's binary interface that `penstock run` needs besides the copies themselves.
namespace penstock::run {

using Result = int;
using Ordinal = int;
using Address = std::uint64_t;  ///< also of the host: the driver's entries take both in the same way
using Context = void*;
using Stream = void*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotInitialized = 3;
/// The default stream of the thread that names it.
inline const auto kPerThreadStream = reinterpret_cast<Stream>(std::uintptr_t{2});

/// What the driver says about an address.
struct Pointer {
  enum class Type : unsigned { pageable = 0, host = 1, device = 2 };

  Context context = nullptr;  ///< null for memory of no one context
  Type type = Type::pageable;
  unsigned managed = 0;
  Ordinal device = -1;
};

/// The driver's own entries, never those that stand in for them. All calls report failure as a refusal to
/// answer: false, or null.
class Driver {
 public:
  /// Of the library at `path`, which the program has loaded.
  explicit Driver(const std::string& path);

  /// False if an entry is missing: then nothing below may be called.
  [[nodiscard]] explicit operator bool() const noexcept { return complete_; }
  [[nodiscard]] bool look_up(Address address, Pointer& pointer) const;
  [[nodiscard]] Context current_context() const;
  [[nodiscard]] bool current_device(Ordinal& device) const;
  /// Retained, and not given back: only an active context is asked for.
  [[nodiscard]] Context primary_context(Ordinal device) const;
  [[nodiscard]] bool is_capturing(Stream stream) const;
  [[nodiscard]] Context context_of(Stream stream) const;
  [[nodiscard]] bool is_idle(Stream stream) const;
  /// Sets which calls of this thread may end a capture of another one, and returns what was set.
  int exchange_capture_mode(int mode) const;

 private:
  bool complete_ = false;
  Result (*pointer_get_attributes_)(unsigned, const int*, void**, Address) = nullptr;
  Result (*ctx_get_current_)(Context*) = nullptr;
  Result (*ctx_get_device_)(Ordinal*) = nullptr;
  Result (*primary_ctx_get_state_)(Ordinal, unsigned*, int*) = nullptr;
  Result (*primary_ctx_retain_)(Context*, Ordinal) = nullptr;
  Result (*stream_is_capturing_)(Stream, int*) = nullptr;
  Result (*stream_get_ctx_)(Stream, Context*) = nullptr;
  Result (*stream_query_)(Stream) = nullptr;
  Result (*exchange_capture_mode_)(int*) = nullptr;
};

/// While one lives, calls of this thread end no capture of another thread.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver), before_(driver.exchange_capture_mode(kRelaxed)) {}
  ~RelaxedCapture() { driver_.exchange_capture_mode(before_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  static constexpr int kRelaxed = 2;
  const Driver& driver_;
  const int before_;
};

}  // namespace penstock::run
