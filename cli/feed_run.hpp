#pragma once

#include "feed_account.hpp"

#include <penstock/loader/loader.hpp>

namespace penstock::cli {

/// Feeds `account.options.epochs` epochs and writes the results to `account`, also if an error ends it early,
/// which it then throws. `verifier` may be null. Returns early if a SignalWatch noted a signal.
void run_epochs(Loader& loader, Verifier* verifier, Progress& progress, bool terminal, FeedAccount& account);

}  // namespace penstock::cli
