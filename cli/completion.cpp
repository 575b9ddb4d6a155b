#include "completion.hpp"

#include <fmt/format.h>

namespace penstock::cli {

namespace {

/// Calls `visit` with the words that lead to a command, such as "penstock doctor run", and the command, for
/// each.
template <typename Visit>
void each_command(const CLI::App& app, const std::string& path, const Visit& visit) {
  visit(path, app);
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
    each_command(*below, path + " " + below->get_name(), visit);
}

/// Calls `visit` with each word that may follow the command, what it means, and whether it takes a value.
template <typename Visit>
void each_word(const CLI::App& command, const Visit& visit) {
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    visit(below->get_name(), below->get_description(), false);
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      visit("--" + name, option->get_description(), option->get_items_expected_max() > 0);
}

// What stands behind -- are the words of another program. Each script then leaves its path empty: files are
// completed.

std::string bash_script(const CLI::App& app) {
  std::string commands, words;
  each_command(app, app.get_name(), [&](const std::string& path, const CLI::App& command) {
    commands += fmt::format(" | '{}'", path);
    words += fmt::format("    '{}') words='", path);
    each_word(command, [&](const std::string& word, const std::string&, bool) { words += word + " "; });
    words += "' ;;\n";
  });
  return R"(_penstock() {
  local path=penstock words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path ${COMP_WORDS[i]}" in
      *' --') path=; break ;;
      )" +
         commands.substr(3) + R"() path="$path ${COMP_WORDS[i]}" ;;
    esac
  done
  case $path in
)" + words +
         R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _penstock penstock
)";
}

std::string fish_script(const CLI::App& app) {
  std::string commands, lines;
  each_command(app, app.get_name(), [&](const std::string& path, const CLI::App& command) {
    commands += fmt::format(" '{}'", path);
    each_word(command, [&](const std::string& word, const std::string& meaning, bool takes_value) {
      lines += fmt::format("complete -c penstock -n 'test \"$(__penstock_path)\" = \"{}\"' {}{} -d '", path,
                           takes_value ? "-r " : "",
                           word.starts_with("--") ? "-l " + word.substr(2) : "-a " + word);
      for (const char each : meaning) lines += each == '\'' ? "\\'" : std::string(1, each);
      lines += "'\n";
    });
  });
  return R"(function __penstock_path
  set -l path penstock
  for word in (commandline -opc)[2..]
    contains -- "$path $word")" +
         commands + R"(; and set path "$path $word"
    test "$word" = --; and set path
  end
  echo "$path"
end
)" + lines;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "fish") return fish_script(app);
  return (shell == "zsh" ? "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n" : "") +
         bash_script(app);
}

}  // namespace penstock::cli
