#include "arguments.hpp"

#include <penstock/transfer/transfer_engine.hpp>

#include <string>

namespace penstock::cli {

namespace {

void add_what(CLI::App& command, FeedOptions& options) {
  command
      .add_option("SOURCES", options.sources,
                  "Files (.npy, .npz, .safetensors), whose arrays are the fields, or directories of them")
      ->required()
      ->type_name("")
      ->check(not_empty());
  add_bytes(command, "--load-limit", options.load_limit,
            "Read files up to this size into memory, and map larger ones (default: a quarter of the memory)");
  add_count(command, "--batch", options.batch, 1, kMostCount, "Samples in a batch", "256");
  add_count(command, "--epochs", options.epochs, 1, kMostCount, "Times through the dataset", "1");
  command.add_flag("--shuffle", options.shuffle, "Feed in another order each epoch");
}

void add_how(CLI::App& command, FeedOptions& options) {
  add_device(command, options.device);
  // Each occurrence takes one value, so that the words after it stay sources.
  command
      .add_option("--to", options.to,
                  "Type to deliver, such as float32; without FIELD, for all fields that can widen to it, "
                  "scalars aside")
      ->type_name("[FIELD=]TYPE")
      ->allow_extra_args(false)
      ->check(not_empty());
  command
      .add_option("--residency", options.residency,
                  "Part kept in device memory: none, all, auto or a fraction such as 0.25")
      ->type_name("PART");
  command
      .add_option("--gather", options.gather,
                  "How samples are gathered: automatic, host, zero-copy or copy-engine")
      ->type_name("PATH");
  add_count(command, "--prefetch", options.prefetch, 1, 64, "Batches that run ahead", "2");
  add_count(command, "--threads", options.threads, 1, TransferOptions::kMostThreads,
            "Host threads that gather", "as processors allow");
  add_bytes(command, "--budget", options.budget,
            "Most device memory to take (default: half of the free memory)");
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
      "  penstock feed images.npy --json -\n"
      "      for programs");
}

}  // namespace penstock::cli
