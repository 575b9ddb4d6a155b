#pragma once

#include "feed_account.hpp"

#include <penstock/loader/loader.hpp>

namespace penstock::cli {

/// Feeds `account.options.epochs` epochs and writes into `account` what happened, also where it throws what
/// ended it early. `verifier` may be null. Returns early where a SignalWatch noted a signal.
void run_epochs(Loader& loader, Verifier* verifier, Progress& progress, bool terminal, FeedAccount& account);

}  // namespace penstock::cli
