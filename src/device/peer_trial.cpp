#include "device/peer_trial.hpp"

#include "core/shared/wait_quietly.hpp"
#include "device/shared/trial_bytes.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace penstock {

namespace {

/// Each member has a block of its own and room for one of each other, side by side in its memory.
class PeerTrial {
 public:
  PeerTrial(const std::vector<Device>& members, PeerRefusals& refusals)
      : members_(members), refusals_(refusals), memory_(members.size()) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      streams_.push_back(members_[i].create_stream());
      blocks_.push_back(trial_bytes(kTrialBytes, trial_seed()));
    }
  }
  ~PeerTrial() {
    // The streams of any member write to the memory of any other.
    for (const Stream& stream : streams_) static_cast<void>(wait_quietly([&] { stream.synchronize(); }));
    for (std::size_t i = 0; i < members_.size(); ++i) members_[i].deallocate(memory_[i]);
  }
  PeerTrial(const PeerTrial&) = delete;
  PeerTrial& operator=(const PeerTrial&) = delete;

  void run() {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (takes_part(i)) take_memory(i);
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!takes_part(i)) continue;
      streams_[i].copy(place(i, i), blocks_[i].data(), kTrialBytes, CopyDirection::h2d);
    }
    for_each_pair([&](std::size_t from, std::size_t to) {
      streams_[from].copy(place(to, from), place(from, from), kTrialBytes, CopyDirection::d2d);
    });
    for (const Stream& stream : streams_) stream.synchronize();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (takes_part(i)) compare(i);
    }
  }

 private:
  template <typename Work>
  void for_each_pair(Work&& work) const {
    for (std::size_t from = 0; from < members_.size(); ++from) {
      for (std::size_t to = 0; to < members_.size(); ++to) {
        if (from != to && refusals_[from][to].why.empty()) work(from, to);
      }
    }
  }

  [[nodiscard]] bool takes_part(std::size_t member) const {
    bool does = false;
    for_each_pair([&](std::size_t from, std::size_t to) { does = does || from == member || to == member; });
    return does;
  }

  /// Where the block of member `from` lies in the memory of `member`.
  [[nodiscard]] std::byte* place(std::size_t member, std::size_t from) const {
    return static_cast<std::byte*>(memory_[member]) + from * kTrialBytes;
  }
  [[nodiscard]] std::size_t size() const { return members_.size() * kTrialBytes; }

  void take_memory(std::size_t member) {
    try {
      memory_[member] = members_[member].allocate(size());
    } catch (const OutOfMemory& error) {
      const std::string why = fmt::format("their copies cannot be tried: {}", error.what());
      for_each_pair([&](std::size_t from, std::size_t to) {
        if (from == member || to == member)
          refusals_[from][to] = {why, "Free memory, and make the group anew"};
      });
    }
  }

  void compare(std::size_t member) const {
    std::vector<std::byte> back(size());
    streams_[member].copy(back.data(), memory_[member], back.size(), CopyDirection::d2h);
    streams_[member].synchronize();
    for_each_pair([&](std::size_t from, std::size_t to) {
      if (to != member) return;
      if (std::memcmp(back.data() + from * kTrialBytes, blocks_[from].data(), kTrialBytes) == 0) return;
      refusals_[from][to] = {fmt::format("the bytes that {} copied to {} arrived wrong",
                                         members_[from].info().spec, members_[to].info().spec),
                             kAfterWrongTrial};
    });
  }

  const std::vector<Device>& members_;
  PeerRefusals& refusals_;
  std::vector<void*> memory_;  ///< null: none
  std::vector<std::vector<std::byte>> blocks_;
  std::vector<Stream> streams_;
};

}  // namespace

void refuse_wrong_bytes(const std::vector<Device>& members, PeerRefusals& refusals) {
  PeerTrial(members, refusals).run();
}

}  // namespace penstock
