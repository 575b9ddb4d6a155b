# Collects missing packages, so that one message names all of them, and how to get them, before anything is
# compiled.

# penstock_need(WHETHER WHAT DEBIAN-PACKAGES FEDORA-PACKAGES): WHETHER is a variable, true where WHAT is here.
function(penstock_need whether what debian fedora)
  if(NOT ${whether})
    set_property(GLOBAL APPEND PROPERTY penstock_missing ${what})
    set_property(GLOBAL APPEND PROPERTY penstock_missing_debian ${debian})
    set_property(GLOBAL APPEND PROPERTY penstock_missing_fedora ${fedora})
  endif()
endfunction()

function(penstock_stop_if_missing)
  get_property(what GLOBAL PROPERTY penstock_missing)
  if(what)
    get_property(debian GLOBAL PROPERTY penstock_missing_debian)
    get_property(fedora GLOBAL PROPERTY penstock_missing_fedora)
    list(JOIN what ", " what)
    list(JOIN debian " " debian)
    list(JOIN fedora " " fedora)
    message(FATAL_ERROR "penstock cannot be built: this machine lacks ${what}.\n"
      "  Debian, Ubuntu: sudo apt-get install ${debian}\n"
      "  Fedora:         sudo dnf install ${fedora}\n")
  endif()
endfunction()
