/* The text of the kernels, ended by a zero byte. */
    .section .rodata
    .balign 16
    .global penstock_kernels_ptx
    .hidden penstock_kernels_ptx
    .type penstock_kernels_ptx, %object
penstock_kernels_ptx:
    .incbin "device/cuda/kernels.ptx"
    .byte 0
    .size penstock_kernels_ptx, . - penstock_kernels_ptx
    .section .note.GNU-stack,"",%progbits
