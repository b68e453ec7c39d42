/* Compile-time defaults of the tests' fake NCCL: a current version with all functions. */
#ifndef KG_EMU_NCCL_FAKE_H
#define KG_EMU_NCCL_FAKE_H

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#define FAKE_SEND    ncclSend
#endif

#endif
