# Sets penstock_decoders: the formats of PENSTOCK_DECODERS whose library is here, with PENSTOCK_<FORMAT>_DIR and
# PENSTOCK_<FORMAT>_LIBRARY of each. penstock is built without the others, too.
set(PENSTOCK_DECODERS JPEG PNG WEBP CACHE STRING "Formats of pictures to decode, if their libraries are here")
set(penstock_decoders)

# penstock_find_decoder(FORMAT HEADER FUNCTION LIBRARY): FUNCTION is one that other versions lack.
function(penstock_find_decoder format header function library)
  find_path(PENSTOCK_${format}_DIR ${header})
  find_library(PENSTOCK_${format}_LIBRARY ${library})
  mark_as_advanced(PENSTOCK_${format}_DIR PENSTOCK_${format}_LIBRARY)
  if(format IN_LIST PENSTOCK_DECODERS AND PENSTOCK_${format}_DIR AND PENSTOCK_${format}_LIBRARY)
    file(STRINGS ${PENSTOCK_${format}_DIR}/${header} declared REGEX ${function})
    if(declared)
      set(penstock_decoders ${penstock_decoders} ${format} PARENT_SCOPE)
    endif()
  endif()
endfunction()

penstock_find_decoder(JPEG jpeglib.h jpeg_crop_scanline jpeg)  # libjpeg lacks it, and libjpeg-turbo has it
penstock_find_decoder(PNG spng.h spng_decode_row spng)
penstock_find_decoder(WEBP webp/decode.h WebPDecode webp)
message(STATUS "Pictures that penstock decodes: ${penstock_decoders}")
