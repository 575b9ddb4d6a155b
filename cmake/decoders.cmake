# Sets penstock_decoders, the formats of pictures whose library is here, and PENSTOCK_<FORMAT>_DIR and
# PENSTOCK_<FORMAT>_LIBRARY of each. penstock decodes no others, and needs none of them.
set(penstock_decoders)

# penstock_find_decoder(FORMAT HEADER FUNCTION LIBRARIES...): FUNCTION is one that older versions lack.
function(penstock_find_decoder format header function)
  find_path(PENSTOCK_${format}_DIR ${header})
  find_library(PENSTOCK_${format}_LIBRARY NAMES ${ARGN})
  mark_as_advanced(PENSTOCK_${format}_DIR PENSTOCK_${format}_LIBRARY)
  if(PENSTOCK_${format}_DIR AND PENSTOCK_${format}_LIBRARY)
    file(STRINGS ${PENSTOCK_${format}_DIR}/${header} declared REGEX ${function})
    if(declared)
      list(APPEND penstock_decoders ${format})
      set(penstock_decoders ${penstock_decoders} PARENT_SCOPE)
    endif()
  endif()
endfunction()

penstock_find_decoder(JPEG jpeglib.h jpeg_crop_scanline jpeg)  # of libjpeg-turbo, not of libjpeg
penstock_find_decoder(PNG spng.h spng_decode_row spng)
penstock_find_decoder(WEBP webp/decode.h WebPDecode webp)
message(STATUS "Pictures that penstock decodes: ${penstock_decoders}")
