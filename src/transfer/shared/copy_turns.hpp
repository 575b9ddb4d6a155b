#pragma once

#include <penstock/core/function_ref.hpp>
#include <penstock/device/device.hpp>

#include <array>
#include <cstddef>

namespace penstock {

/// Two streams on which copies are enqueued in turn, in parts: a piece of a large copy, several smaller
/// copies, or a round of a packed transfer. Two parts are under way at most if each waits for may_enqueue(),
/// and one if each comes behind the one before: see come_behind().
///
/// A copy engine serves a stream for as long as it has work, and then the next one. If one stream always has
/// work, copies of the program's own do not come at all. In this way they wait for two parts at most. Each
/// part costs the link some 4 µs. One thread at a time.
class CopyTurns {
 public:
  /// Throws DeviceError.
  explicit CopyTurns(const Device& device);

  /// The parts from here on are those of one submission. The first goes to `first`, the next to `second`.
  /// Both outlive their use. Does not block the host.
  void begin(const Stream& first, const Stream& second);
  /// True if the last part but one is done, of all submissions. Does not block the host. Throws DeviceError
  /// if the device failed.
  [[nodiscard]] bool may_enqueue() const { return done_[parts_ % done_.size()].query(); }
  /// True if all parts are done. Does not block the host. Throws as may_enqueue.
  [[nodiscard]] bool are_done() const { return done_[0].query() && done_[1].query(); }
  /// The first stream of the submission that began last.
  [[nodiscard]] const Stream& first() const { return *sides_[0].stream; }
  /// The stream whose turn it is.
  [[nodiscard]] const Stream& stream() const { return *sides_[turn_].stream; }
  /// Has `copies` enqueue a part on the stream whose turn it is. Then it is the other one's.
  void enqueue(FunctionRef<void(const Stream&)> copies) {
    add(copies);
    end_part();
  }
  /// The device begins the part that comes next once the part before is done. For a part that has no turn
  /// yet: other copies still come in between. Does not block the host.
  void come_behind();
  /// Has `copies` enqueue a piece of a part on the stream whose turn it is. After its last piece, end_part.
  void add(FunctionRef<void(const Stream&)> copies);
  void end_part();
  /// Makes later work on `first` come after the parts since begin. Without begin it does nothing. Does not
  /// block the host.
  void join();

 private:
  struct Side {
    const Stream* stream = nullptr;
    bool has_parts = false;  ///< since begin
  };

  std::array<Side, 2> sides_;  ///< `first`, `second`
  std::size_t turn_ = 0;
  std::array<Event, 2> done_;  ///< recorded after the latest parts; count as done until then
  std::size_t parts_ = 0;      ///< of all submissions
  Event joined_;               ///< recorded on `second` at the end of a submission
};

}  // namespace penstock
