#pragma once

#include "failures/failing_calls.hpp"

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace penstock::testing {

/// Work that may fail at each call, and has to work afterwards.
struct Scenario {
  /// Does the work, and returns the bytes that arrived: the same each time. After a failure it goes on with
  /// the engine or loader that failed, if there is one already.
  using Work = std::function<std::vector<std::byte>()>;

  std::string name;
  /// The first kind of call to fail.
  Call first = Call::memory;
  /// Makes what the work needs. Nothing fails meanwhile. With the work goes all that it holds.
  std::function<Work()> prepare;
};
inline void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

[[nodiscard]] const std::vector<Scenario>& scenarios();

/// Does the scenario's work over and over, in another process. First its first call of a kind fails, then the
/// second, until there are no more, and so on with the next kind. Expects each time that the work comes to
/// the right bytes all the same, or throws an Error or std::bad_alloc that names what failed; that it then
/// works; and that nothing stays behind. A crash or a hang is a failure of the test too. Behind the 20th call
/// it leaves some out, if PENSTOCK_EVERY_CALL is not set.
void fails_at_every(const Scenario& scenario);

}  // namespace penstock::testing
