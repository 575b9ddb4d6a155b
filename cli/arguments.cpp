#include "arguments.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kMostRanks = std::uint64_t{1} << 20;

void add_what(CLI::App& command, FeedOptions& options) {
  add_sources(command, "SOURCES", options.sources,
              "Files (.npy, .npz, .safetensors), whose arrays are the fields, or directories of them");
  add_bytes(command, "--load-limit", options.load_limit,
            "Read files up to this size into memory, and map larger ones (default: a quarter of the memory)");
  add_count(command, "--batch", options.batch, 1, kMostCount, "Samples in a batch", "256");
  add_count(command, "--epochs", options.epochs, 1, kMostCount, "Times through the dataset", "1");
  command.add_flag("--shuffle", options.shuffle, "Feed in another order each epoch");
  add_count(command, "--seed", options.seed, 0, std::numeric_limits<std::uint64_t>::max(),
            "Seed of the shuffle", "0");
  command.add_flag(
      "--drop-last", options.drop_last,
      "Leave out a last batch that is not full, and samples that do not fill a step of all ranks");
  add_count(command, "--rank", options.rank, 0, kMostCount,
            "This process's part of each epoch, counted from 0", "0");
  add_count(command, "--world-size", options.world_size, 1, kMostRanks, "Processes that share each epoch",
            "1");
}

void add_residency(CLI::App& command, std::string& residency, const char* parts) {
  command.add_option("--residency", residency, fmt::format("Part kept in device memory: {}", parts))
      ->type_name("PART");
}

CLI::Option* add_gather(CLI::App& command, std::string& gather) {
  return command
      .add_option("--gather", gather, "How samples are gathered: automatic, host, zero-copy or copy-engine")
      ->type_name("PATH");
}

void add_how(CLI::App& command, FeedOptions& options) {
  add_device(command, options.device);
  add_repeatable(
      command, "--to", options.to, "[FIELD=]TYPE",
      "Type to deliver, such as float32; without FIELD, for all fields that can widen to it, scalars aside");
  add_repeatable(command, "--scale", options.scale, "[FIELD=]X[,X...]",
                 "Deliver value * scale + shift; several numbers are one for each channel");
  add_repeatable(command, "--shift", options.shift, "[FIELD=]X[,X...]", "See --scale");
  add_residency(command, options.residency, "none, all, auto or a fraction such as 0.25");
  add_gather(command, options.gather);
  add_count(command, "--prefetch", options.prefetch, 1, 64, "Batches that run ahead", "2");
  add_count(command, "--threads", options.threads, 1, TransferOptions::kMostThreads,
            "Host threads that gather", "as processors allow");
  add_bytes(command, "--budget", options.budget,
            "Most device memory to take (default: half of the free memory)");
  add_bytes(command, "--row-budget", options.row_budget,
            "Most locked host memory for small fields in rows (default: an eighth of the memory)");
  add_off_flag(command, "--no-narrow", options.narrow, "Send integers in the type they are stored in");
}

void add_account(CLI::App& command, FeedOptions& options) {
  command.add_flag("--verify", options.verify, "Compare every delivered byte with the dataset");
  add_time(
      command, "--step-ms", "milliseconds", 0, kLongestMilliseconds,
      [&options](double number) { options.step_ms = number; },
      "Occupy the device for X milliseconds per batch, in place of a model");
  add_file(command, "--report", options.report, "Write a page with pictures to FILE");
  add_json(command, options.json, "the account");
  add_file(command, "--profile", options.profile, "Link profile in place of the stored one");
}

}  // namespace

void add_feed(CLI::App& app, FeedOptions& options) {
  CLI::App* command = app.add_subcommand("feed", "Feed a dataset to a device, and say where the time went");
  add_what(*command, options);
  add_how(*command, options);
  add_account(*command, options);
  command->footer(
      "Examples:\n"
      "  penstock feed images.npy labels.npy --shuffle --epochs 3\n"
      "  penstock feed set.npz --batch 512 --step-ms 12\n"
      "      would it keep up with a step of 12 ms?\n"
      "  penstock feed images.npy --to float32 --verify --report report.html\n"
      "  penstock feed images.npy --rank 0 --world-size 8\n"
      "      what one of eight processes gets\n"
      "  penstock feed images.npy --json -\n"
      "      for programs");
}

}  // namespace penstock::cli
