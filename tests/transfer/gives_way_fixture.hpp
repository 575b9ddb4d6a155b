#pragma once

#include "transfer/group_fixture.hpp"
#include "transfer/traffic.hpp"

#include <penstock/transfer/group_profile.hpp>

#include <cstddef>
#include <deque>
#include <vector>

namespace penstock::testing {

/// Three devices with modelled links, so that others on them take their time: 0 receives, 1 and 2 relay and
/// give way to others. `Base`: a GroupTest.
template <typename Base>
class GivesWayTest : public Base {
 protected:
  /// Relays something once, checks it, and returns the bytes that each member carried.
  virtual std::vector<std::size_t> carried_once() = 0;
  /// The least that a member carries at once which does not give way.
  [[nodiscard]] virtual std::size_t least_share() const = 0;

  /// The rates of the modelled links.
  [[nodiscard]] GroupProfile measured() const {
    GroupProfile profile = GroupProfile::named_after(DeviceGroup(this->devices_));
    for (GroupProfile::Member& member : profile.members) {
      member.link = 0.1e9;
      member.relayed = 0.3e9;
      member.peers.assign(this->size(), 0.4e9);
    }
    profile.links_at_once = 0.3e9;
    return profile;
  }

  /// True once it is carried as `expected` says. It is tried often: on a busy host some parts are late.
  template <typename Expected>
  [[nodiscard]] bool soon(Expected&& expected) {
    for (int i = 0; i < 50; ++i) {
      if (expected(carried_once())) return true;
    }
    return false;
  }
  [[nodiscard]] bool soon_carries_its_share(std::size_t member) {
    return soon([&](const auto& carried) { return carried[member] >= least_share(); });
  }
  /// The clocks of those who relay run so fast: what they carry seems slower.
  void set_clock_rates(double rate) {
    for (const std::size_t i : {1u, 2u}) this->faulty_[i]->set_clock_rate(rate);
  }

  /// Others use a member's link, and then its way to the receiver, with parts of `bytes`. `probes`: the most
  /// that it carries meanwhile.
  void expect_gives_way_until_the_others_are_gone(std::size_t bytes, std::size_t probes) {
    const Buffer there = this->poisoned(1, 6 * bytes);
    const Buffer elsewhere = this->poisoned(2, 6 * bytes);
    const LockedForAll host(this->plain_, bytes);
    for (const bool on_link : {false, true}) {
      EXPECT_TRUE(soon_carries_its_share(1));
      {
        const Traffic traffic(this->plain_[1], on_link ? there.data() : elsewhere.data(),
                              on_link ? host.data() : there.data(), on_link ? bytes : 2 * bytes,
                              on_link ? CopyDirection::h2d : CopyDirection::d2d);
        EXPECT_TRUE(soon([&](const auto& carried) { return carried[1] <= probes; })) << on_link;
        EXPECT_TRUE(soon_carries_its_share(2)) << "its wires are free";
      }
      EXPECT_TRUE(soon_carries_its_share(1));
    }
  }

  /// All links are slow together, with parts of `bytes` on them. No member gives way, or not for long: its
  /// first chunks may be read first.
  void expect_keeps_its_share_if_all_are_slow(std::size_t bytes) {
    EXPECT_TRUE(soon_carries_its_share(1));
    EXPECT_TRUE(soon_carries_its_share(2));
    const std::vector<Buffer> there = this->poisoned_for_all(3 * bytes);
    const LockedForAll host(this->plain_, bytes);
    std::deque<Traffic> traffic;
    for (std::size_t i = 0; i < there.size(); ++i) {
      traffic.emplace_back(this->plain_[i], there[i].data(), host.data(), bytes, CopyDirection::h2d);
    }
    carried_once();
    EXPECT_TRUE(soon_carries_its_share(1));
    EXPECT_TRUE(soon_carries_its_share(2));
  }

  /// A member that seems slow carries at most `most` at once, and from then on between `probe` and `probes`.
  void expect_gives_way_soon(std::size_t most, std::size_t probe, std::size_t probes) {
    EXPECT_TRUE(soon_carries_its_share(1));
    EXPECT_TRUE(soon_carries_its_share(2));
    set_clock_rates(1000);
    const std::vector<std::size_t> at_first = carried_once();
    const std::vector<std::size_t> then = carried_once();
    for (const std::size_t i : {1u, 2u}) {
      EXPECT_LE(at_first[i], most);
      EXPECT_LE(then[i], probes);
      EXPECT_GE(then[i], probe) << "it looks again whether the others are gone";
    }
    set_clock_rates(1);
    EXPECT_TRUE(soon_carries_its_share(1));
  }
};

#define PENSTOCK_GIVES_WAY_SUITE(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(, Suite,                                                                  \
                           ::testing::Values(GroupCase{"HostLinks",                                  \
                                                       {"host:0,memory=256MiB,link=0.1,peer=0.4",    \
                                                        "host:1,memory=256MiB,link=0.1,peer=0.4",    \
                                                        "host:2,memory=256MiB,link=0.1,peer=0.4"}}), \
                           [](const auto& each) { return each.param.name; })

}  // namespace penstock::testing
