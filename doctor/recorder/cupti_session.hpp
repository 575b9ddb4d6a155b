#pragma once

#include "contents.hpp"
#include "cupti.hpp"
#include "doctor/read/call_names.hpp"
#include "recording_file.hpp"

#include <atomic>
#include <cstdint>

namespace penstock::recorder {

/// Of a CallKind's place: a call that is not recorded.
inline constexpr std::uint8_t kNotKept = 0xFF;

[[nodiscard]] constexpr bool is_launch(std::uint8_t kind) noexcept {
  return kind == static_cast<std::uint8_t>(CallKind::launch);
}

/// What CUPTI is asked for: callbacks of calls, and records of launches, of what devices do, and of ranges.
/// The recording says what CUPTI refused. Nothing is thrown.
class CuptiSession {
 public:
  CuptiSession(const Cupti& cupti, RecordingFile& file) noexcept : cupti_(cupti), file_(file) {}

  /// Asks for `on_call` at all calls but launches, and names the takers of buffers. False if
  /// nothing may be recorded at all; a note says why.
  [[nodiscard]] bool begin(CuptiCallback on_call, CuptiBufferRequested requested,
                           CuptiBufferCompleted completed) noexcept;
  /// Asks for records. Without callbacks, they are also of calls other than launches.
  void enable_records() noexcept;
  /// Asks for nothing any more.
  void end() noexcept;

  /// Known once `begin` has returned.
  [[nodiscard]] bool has_callbacks() const noexcept { return subscriber_ != nullptr; }
  /// A CallKind, or kNotKept.
  [[nodiscard]] std::uint8_t kind_of(int domain, std::uint32_t function) const noexcept;
  [[nodiscard]] InputCall input_of(int domain, std::uint32_t function) const noexcept;

  /// Sees whether a launch of the runtime is recorded twice, as the driver's call within it, too. CUPTI's
  /// buffers hold the calls of a thread in the order of their ends. Any thread may call it.
  void look_for_doubled(const CuptiCallRecord& launch) noexcept;
  /// Asks for no more records of these launches of the runtime. Two of each would cost the program twice as
  /// much. A CUPTI before 12.8 makes them all the same.
  void leave_doubled_launches() noexcept;

 private:
  static constexpr std::uint32_t kMostFunctions = 2048;  // of the runtime or the driver; there are some 900
  struct Function {
    std::uint8_t kind = kNotKept;
    InputCall input = InputCall::no;
    std::atomic<bool> is_doubled{false};  ///< a launch of the runtime that is recorded twice
  };

  [[nodiscard]] const Function& function_of(int domain, std::uint32_t function) const noexcept;
  template <typename Act>
  void for_each_function(const Act& act) const noexcept;
  [[nodiscard]] bool subscribe(CuptiCallback on_call) noexcept;
  void find_functions(int domain, Function* functions) noexcept;
  void choose_calls() noexcept;
  void enable_callbacks() noexcept;
  void enable_activities() noexcept;
  void enable_call_records() noexcept;
  CuptiResult switch_call_records(bool on) noexcept;
  void note_no_callbacks(CuptiResult error) noexcept;
  void note_refused(const char* what, std::uint32_t left_out, CuptiResult error) noexcept;
  void leave_out_refused(std::uint32_t left_out) noexcept;

  const Cupti& cupti_;
  RecordingFile& file_;
  CuptiSubscriber subscriber_ = nullptr;
  Function driver_functions_[kMostFunctions];
  Function runtime_functions_[kMostFunctions];
};

}  // namespace penstock::recorder
