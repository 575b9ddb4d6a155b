#include "arguments.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <limits>

namespace penstock::cli {

namespace {

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();

/// Each occurrence takes one value, so that what follows stays a source.
void add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                    const std::string& type, const std::string& description) {
  command.add_option(name, values, description)->type_name(type)->allow_extra_args(false);
}

void add_what(CLI::App& command, FeedOptions& options) {
  command
      .add_option("SOURCES", options.sources,
                  "Files (.npy, IDX, IDX.gz), a field each; a directory; or a dataset's name")
      ->required();
  command.add_option("--split", options.split, "Part of a directory that holds several: train or test");
  add_repeatable(command, "--search", options.search, "DIR", "Where names are looked up too");
  add_bytes(command, "--load-limit", options.load_limit,
            "Files up to this size are read into memory, larger ones mapped; a quarter of the memory");
  command.add_option("--batch", options.batch, "Samples in a batch; 256")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  command.add_option("--epochs", options.epochs, "Times through the dataset; 1")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  command.add_flag("--shuffle", options.shuffle, "In another order each epoch");
  command.add_option("--seed", options.seed, "Of the shuffle; 0");
  command.add_flag("--drop-last", options.drop_last,
                   "Leave out what fills no batch, or no step of all ranks");
  command.add_option("--rank", options.rank, "This process's part of each epoch; 0");
  command.add_option("--world-size", options.world_size, "Processes that share each epoch; 1")
      ->check(CLI::Range(std::int64_t{1}, kMost));
}

void add_how(CLI::App& command, FeedOptions& options) {
  add_device(command, options.device);
  add_repeatable(command, "--to", options.to, "[FIELD=]TYPE",
                 "Type to deliver, such as float32; without FIELD all that can widen to it, scalars aside");
  add_repeatable(command, "--scale", options.scale, "[FIELD=]X[,X...]",
                 "Delivered values are value * scale + shift; several are one for each channel");
  add_repeatable(command, "--shift", options.shift, "[FIELD=]X[,X...]", "See --scale");
  command.add_option("--residency", options.residency,
                     "Part kept in device memory: none, all, auto or a fraction");
  command.add_option("--gather", options.gather,
                     "How samples come together: automatic, host, zero-copy or copy-engine");
  command.add_option("--prefetch", options.prefetch, "Batches that run ahead; 2")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{64}));
  command.add_option("--threads", options.threads, "Host threads that gather; as processors allow");
  add_bytes(command, "--budget", options.budget, "Most device memory to take; half of what is free");
  command.add_flag("!--no-narrow", options.narrow, "Send integers in the type they are stored in");
}

void add_account(CLI::App& command, FeedOptions& options) {
  command.add_flag("--verify", options.verify, "Compare every byte that arrived with the dataset");
  command
      .add_option("--step-ms", options.step_ms, "Occupy the device so long per batch, in place of a model")
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--report", options.report, "Write a page with pictures to FILE")->type_name("FILE");
  command.add_option("--json", options.json, "Write the account to FILE; - is standard output")
      ->type_name("FILE");
  command.add_option("--profile", options.profile, "Link profile in place of the stored one")
      ->type_name("FILE");
  command.add_flag("--ascii", options.ascii, "Draw with ASCII alone");
}

}  // namespace

CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [&bytes, name](const std::string& text) {
            try {
              bytes = parse_bytes(text);
            } catch (const InvalidArgument& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          description)
      ->type_name("SIZE");
}

void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cuda:N, host, host:key=value,..., or auto")->type_name("SPEC");
}

void add_feed(CLI::App& app, FeedOptions& options) {
  CLI::App* command = app.add_subcommand("feed", "Feed a dataset to a device, and say where the time went");
  add_what(*command, options);
  add_how(*command, options);
  add_account(*command, options);
}

}  // namespace penstock::cli
