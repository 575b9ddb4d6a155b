#include "completion.hpp"

#include <fmt/format.h>

namespace penstock::cli {

std::string completion_script(const std::string& shell) {
  if (shell == "fish")
    return "complete -c penstock -a '(penstock --complete (commandline -opc)[2..] | string replace \" \" "
           "\\t)'\n";
  const std::string begin = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n";
  return (shell == "zsh" ? begin : "") + R"sh(_penstock() {
  local words="$(penstock --complete "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}" | cut -d ' ' -f 1)"
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _penstock penstock
)sh";
}

std::string completions(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    if (word == "--") return "";  // what follows are the words of another program
    const auto below =
        command->get_subcommands([&](const CLI::App* each) { return each->get_name() == word; });
    if (!below.empty()) command = below.front();
  }
  std::string lines;
  for (const CLI::App* below : command->get_subcommands([](const CLI::App*) { return true; }))
    lines += fmt::format("{} {}\n", below->get_name(), below->get_description());
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames())
      lines += fmt::format("--{} {}\n", name, option->get_description());
  return lines;
}

}  // namespace penstock::cli
