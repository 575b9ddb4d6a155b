# A file becomes text in a target: page_texts.hpp has it as `constant`.
function(penstock_page_text target constant file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${file} text)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/texts/page_texts.hpp @ONLY CONTENT
"#pragma once

#include <string_view>

namespace penstock::cli {

inline constexpr std::string_view @constant@ = R\"__penstock__(@text@)__penstock__\";

}  // namespace penstock::cli
")
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/texts)
endfunction()
